"""Calls the container engine of this node: checks whether the engine answers, and finds and removes orch's containers.

An engine's error is converted into one sentence, to which the caller adds the host's name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.node.container.argv import ATTEMPT, DIR, ENGINES, NODE, OWNER, RUN
from orchestrator.node.system.orphans import run
from orchestrator.node.system.private import user_in_words
from orchestrator.node.system.processes import status_of
from orchestrator.node.system.shortages import shortage
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import MOST_WORD, read_json

ANSWER_SECONDS = 60.0
CAP_SYS_RESOURCE = 24


class EngineError(Exception):
    """The container runtime of this node can't do what was requested. The text names the problem and a remedy, but not
    the host.
    """


@dataclass(frozen=True)
class Engine:
    """A container runtime that has answered, with the facts that it has reported about itself."""

    name: str
    version: str
    rootless: bool = False
    root: str = ""  # the folder that holds the engine's images


@dataclass(frozen=True)
class Found:
    """A container that orch has started, as the engine and the container's labels describe it."""

    id: str
    run_id: str
    node: int
    attempt: int
    run_dir: str
    state: str


def ask(runtime: str) -> Engine:
    """Query the container runtime, and return its version and other facts. Raises EngineError if the runtime is
    missing, does not answer, or refuses this user.
    """
    if runtime == "docker":
        found = parse_json(call(runtime, "info", "--format", "{{json .}}") or "{}")
        if errors := found.get("ServerErrors"):  # docker 20.10 reports errors here with exit code 0
            raise EngineError(in_words("\n".join(map(str, errors)), runtime))
        rootless = any("name=rootless" in option for option in found.get("SecurityOptions") or ())
        return Engine(runtime, found.get("ServerVersion") or "?", rootless, found.get("DockerRootDir") or "")
    if runtime == "podman":
        found = parse_json(call(runtime, "info", "--format", "json") or "{}")
        rootless = bool(_at(found, "host", "security", "rootless"))
        root = str(_at(found, "store", "graphRoot") or "")
        return Engine(runtime, str(_at(found, "version", "Version") or "?"), rootless, root)
    if runtime == "pyxis":
        if "--container-image" not in call("srun", "--help"):
            raise EngineError("its srun has no --container-image: pyxis is not installed in this Slurm")
        return Engine(runtime, "srun --container-image")
    return Engine(runtime, call(runtime, "--version").strip().rpartition(" ")[2])


def engine_pid(engine: str) -> int:
    """Return the pid of the process that starts containers: docker's daemon, or this process for other engines.

    The kernel reports the daemon's pid for a connection to the daemon's socket.
    """
    path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if engine == "docker" and path.startswith("unix://"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(path[len("unix://") :])
            return int(struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
    return os.getpid()


def can_lift_limits(pid: int) -> bool:
    """Return whether the process may raise its limits without bound, by the capability CAP_SYS_RESOURCE. An engine's
    daemon that runs in a container may lack this capability.
    """
    return bool(int(status_of(pid, "CapEff") or "0", 16) >> CAP_SYS_RESOURCE & 1)


# -- containers of orch


def ours(engine: str, run_id: str | None = None, node: int | None = None) -> list[Found]:
    """Return the containers that orch has started for this user, running or not. If `run_id` or `node` is given, return
    only the containers of this run or node. Raises EngineError if the engine does not answer.
    """
    filters = [f"label={RUN}={run_id}" if run_id else f"label={RUN}", f"label={OWNER}={os.getuid()}"]
    filters += [f"label={NODE}={node}"] if node is not None else []
    words = [word for each in filters for word in ("--filter", each)]
    ids = call(engine, "ps", "--all", "--quiet", "--no-trunc", *words).split()
    if not ids:
        return []
    # `inspect` fails if a container was removed meanwhile, but still describes the other containers.
    done = answer([engine, "inspect", "--type", "container", *ids], ANSWER_SECONDS)
    return [_found(each) for each in parse_json(done.stdout or "[]")]


def _found(values: Mapping[str, Any]) -> Found:
    def mark(name: str) -> Any:
        return _at(values, "Config", "Labels", name)

    numbers = {name: int(mark(name) or 0) for name in (NODE, ATTEMPT)}
    state = str(_at(values, "State", "Status"))
    return Found(str(values["Id"]), str(mark(RUN)), numbers[NODE], numbers[ATTEMPT], str(mark(DIR) or ""), state)


def _at(values: Mapping[str, Any], *names: str) -> Any:
    """Return the value under nested keys in an engine's answer, or None if one of the keys is missing."""
    found: Any = values
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def remove(engine: str, run_id: str, node: int | None = None, timeout: float = 20.0) -> tuple[int, list[str]]:
    """Remove the run's containers by force. Return (number of removed containers, ids of the remaining containers)."""
    removed: set[str] = set()
    end = time.monotonic() + timeout
    while found := ours(engine, run_id, node):
        if time.monotonic() > end:
            return len(removed), [each.id[:12] for each in found]
        ids = [each.id for each in found]
        # A container that is removing itself refuses to be removed. The next search shows whether it is gone.
        answer([engine, "rm", "--force", "--volumes", *ids], ANSWER_SECONDS)
        removed.update(ids)
    return len(removed), []


def recorded(node_dir: str) -> str | None:
    """Return the engine that a node's agent recorded before it started a container. Return None if there is no
    record.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        engine = read_json(f"{node_dir}/container.json", MOST_WORD)["runtime"]
        return engine if engine in ENGINES else None
    return None


def end_containers(
    run_id: str, node_dirs: list[str], node: int | None = None, *, anywhere: bool = False
) -> tuple[int, list[str]]:
    """Remove the run's containers from the engines that the run's agents recorded. With `anywhere`, also search docker.

    Return the number of removed containers, and descriptions of the remaining containers.
    """
    known = {engine for folder in node_dirs if (engine := recorded(folder)) is not None}
    removed, left = 0, []
    for engine in ENGINES:
        if engine in known or (anywhere and engine in _likely()):
            try:
                count, stuck = remove(engine, run_id, node)
            except EngineError as error:
                left += [f"containers of {run_id}, perhaps: {error}"] if engine in known else []
                continue
            removed, left = removed + count, [*left, *(f"container {each}" for each in stuck)]
    return removed, left


def everywhere(node_dirs: Iterable[str]) -> list[Found]:
    """Return this user's containers of orch from all engines that agents recorded in the folders `node_dirs`. If docker
    answers, search docker too.
    """
    found: list[Found] = []
    for engine in {*_likely(), *filter(None, map(recorded, node_dirs))}:
        with contextlib.suppress(EngineError):
            found += ours(engine)
    return found


def _likely() -> tuple[str, ...]:
    """Return the engines that are searched for containers even if no agent has recorded them.

    Podman is not searched, because its first use by a user leaves a process behind.
    """
    return ("docker",) if shutil.which("docker") else ()


# -- running the engine's program


def call(program: str, *args: str, timeout: float = ANSWER_SECONDS) -> str:
    """Run a program and return its output. If the program fails, raises EngineError with the program's error in one
    sentence.
    """
    done = answer([program, *args], timeout)
    if done.returncode != 0 or done.stderr.startswith("Cannot connect"):
        raise EngineError(in_words(done.stderr, program))
    return done.stdout


def answer(argv: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        return run(argv, timeout)
    except FileNotFoundError as error:
        raise EngineError(
            f"the host has no {argv[0]}: install it there, or set another `runtime` in the profile"
        ) from error
    except OSError as error:
        raise EngineError(f"{argv[0]} can't be started on the host: {shortage(error) or error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{argv[0]} did not answer '{argv[1]}' within {timeout:.0f} s") from error


HELP = re.compile(r"\s*(See 'docker|Run '\w+ .*--help)")
_KNOWN = (
    (
        r"permission denied.*(sock|connect)",
        "{user} may not use its {engine} daemon: add {user} to the group docker there, or set runtime: podman",
    ),
    (r"cannot connect to|is the docker daemon running", "its {engine} daemon does not answer: start it there"),
    (r"no space left on device", "its disk is full, as {engine} reports: make room where its images are stored"),
    (r"exec format error", "the image is for another kind of processor than this machine's: build it for this one"),
    (
        r"container-init binary not found",
        "its podman has no init program for containers: install catatonit there",
    ),
    (
        r"statfs /dev/mqueue",
        "it has no /dev/mqueue, which podman needs to share the node's /dev/shm: mount it, or set container.shm",
    ),
    (
        r"could not select device driver|unresolvable CDI|nvidia-container-cli|CDI device",
        "its {engine} can't give GPUs to a container ({last}): install nvidia-container-toolkit, or set gpu_flag",
    ),
    (
        r"executable file .*not found|no such file or directory: unknown|starting container process.*no such file",
        "the image has no such interpreter ({last}): set `python` in the profile to the image's own",
    ),
)  # fmt: skip


def in_words(errors: str, engine: str) -> str:
    """Explain an engine's error output in one sentence. If the error is unknown, quote its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not HELP.match(line)]
    last = (lines[-1] if lines else "it printed nothing")[:300]
    for pattern, sentence in _KNOWN:
        if re.search(pattern, errors, re.IGNORECASE):
            return sentence.format(engine=engine, user=user_in_words(os.getuid()), last=last)
    return f"{engine} reports: {last}"
