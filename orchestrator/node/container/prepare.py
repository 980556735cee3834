"""Prepares a task's container on this node: pulls the image, creates the mounts, and determines the ranks'
resources.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.node.container.argv import (
    ENGINES,
    SHARES_TMP,
    NodeResources,
    argv,
    compiled_folder,
    container_name,
    places_in_view,
    scratch_folder,
    task_inside,
    written_inside,
)
from orchestrator.node.container.engine import (
    ANSWER_SECONDS,
    Engine,
    EngineError,
    answer,
    ask,
    call,
    can_lift_limits,
    engine_pid,
    in_words,
)
from orchestrator.node.system.gpus.devices import machine_devices
from orchestrator.node.system.gpus.nvml import look
from orchestrator.node.system.private import user_name
from orchestrator.protocol.files import write_json
from orchestrator.protocol.hostlist import ranges
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import container_view, given_folder, metrics_file, node_folder, second_copy_file
from orchestrator.protocol.places.devices import NONE_FROM_HERE, VISIBLE, shown, words_of
from orchestrator.protocol.quantities import size
from orchestrator.protocol.reading import MOST_WORD, read_regular
from orchestrator.protocol.task import Container, Mount, NodeTask, copies_checkpoints

PULL_SECONDS = 3600.0
# exit codes of a runtime, but never of a launcher: engine failed, interpreter can't be run, interpreter is missing
OWN_CODES = (125, 126, 127)
LEAST_FREE = 64 << 20
FAST_DEVICES = ("/dev/gdrdrv",)
SITE_FILES = ("/etc/nccl.conf",)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class ContainerLaunch:
    """The command that starts a launcher in a container, the launcher's task, and the facts about the container."""

    argv: list[str]
    task: NodeTask
    record: dict[str, Any]


def prepare(task: NodeTask, attempt: int, threads: int) -> ContainerLaunch:
    """Create the container's mounts, and return the command that starts the task's launcher in a container.

    The container is recorded before it starts, so that it can be removed even if this process is killed. Raises
    EngineError if the container can't start on this node.
    """
    box = replace(task.container, mounts=here(task.container.mounts)) if task.container else None
    assert box is not None
    task = replace(task, container=box)
    engine, image = ready(box)
    node_dir = node_folder(task.run_dir, task.node_rank)
    cidfile = f"{node_dir}/container_{attempt}.id"
    _make_places(task, attempt)
    with contextlib.suppress(FileNotFoundError):  # the engine refuses to start if this file exists
        os.unlink(cidfile)
    record = {
        "runtime": engine.name, "version": engine.version, "image": box.image, "image_id": image,
        "name": container_name(task.run_id, task.node_rank, attempt), "attempt": attempt,
    }  # fmt: skip
    write_json(f"{node_dir}/container.json", record, durable=False)
    resources = node_resources(task, engine, os.environ)
    words = argv(task, resources, attempt, image or box.image, cidfile=cidfile)
    return ContainerLaunch(words, task_inside(task, resources, os.environ, threads), {**record, "cidfile": cidfile})


def _make_places(task: NodeTask, attempt: int) -> None:
    """Create the files and folders that will be mounted. An engine would refuse a missing file or folder, or would
    create it with root as the owner.
    """
    folders = [path for path in written_inside(task, attempt) if path != metrics_file(task.run_dir)]
    folders += [task.inputs_dir] if task.inputs else []
    folders += [given_folder(task.run_dir)] if task.resume.startswith(given_folder(task.run_dir)) else []
    folders += [os.path.dirname(second_copy_file(task.run_dir))] if copies_checkpoints(task) else []
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    if task.container is not None and task.container.runtime in SHARES_TMP:
        remove_scratch(task)  # left by an agent that was killed
        os.mkdir(scratch_folder(task), 0o700)
    if task.node_rank == 0:
        _make_file(metrics_file(task.run_dir))
    os.makedirs(container_view(task.run_dir), exist_ok=True)
    view = os.path.realpath(container_view(task.run_dir))
    for source, place in places_in_view(task, attempt):
        if not f"{os.path.realpath(os.path.dirname(place))}/".startswith(f"{view}/"):
            continue  # ranks of an earlier attempt have put a link here, which may point anywhere
        if os.path.isfile(source):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            _make_file(place)
        else:
            os.makedirs(place, exist_ok=True)


def _make_file(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))


def remove_scratch(task: NodeTask) -> None:
    """Remove the folder that was mounted at /tmp in a container that has ended."""
    shutil.rmtree(scratch_folder(task), ignore_errors=True)


def remove_compiled(task: NodeTask) -> None:
    """Remove the code that the run's ranks have compiled in containers on this node. This is called after the last
    container has ended.
    """
    if task.container is not None:
        shutil.rmtree(compiled_folder(task), ignore_errors=True)


def container_id(cidfile: str) -> str:
    """Return the id that the engine gave to the container. Return "" if the runtime gives no ids to containers."""
    with contextlib.suppress(OSError, ValueError):
        return read_regular(cidfile, MOST_WORD).decode("ascii").strip()
    return ""


def pinned(task: NodeTask, record: Mapping[str, Any]) -> NodeTask:
    """Return the task with the id of the image that the run's first start used on this node. So later starts use the
    same image, even if the image's tag moves.
    """
    if task.container is None or not record.get("image_id"):
        return task
    return replace(task, container=replace(task.container, image=record["image_id"], pull="never"))


def refusal(task: NodeTask, code: int, tail: list[str]) -> str | None:
    """Return why the container did not start. Return None if the exit code comes from the launcher and not from the
    runtime.
    """
    if task.container is None or code not in OWN_CODES or task.container.runtime not in ENGINES:
        return None
    why = in_words("\n".join(tail), task.container.runtime)
    return f"its container of {task.container.image} could not be started: {why}"


def ended_with(task: NodeTask, code: int) -> int:
    """Convert the container runtime's exit code to the launcher's exit code. If signal N ended the launcher, the
    runtime exits with 128 + N. In this case return -N.
    """
    if task.container is None or code <= 128 or code - 128 not in set(signal.Signals):
        return code
    return 128 - code


def ready(box: Container) -> tuple[Engine, str]:
    """Check the container runtime, and pull the image if necessary. Return the runtime and the image's id on this node.
    If the runtime reports no id before the start, the id is "".

    Raises EngineError if the container can't start on this node.
    """
    for mount in here(box.mounts):
        if not os.path.exists(mount.source):
            raise EngineError(f"the host has no {mount.source}, which the job mounts as {mount.target}")
    engine = ask(box.runtime)
    if engine.root and (free := _free(engine.root)) is not None and free < LEAST_FREE:
        raise EngineError(
            f"the disk of {engine.name}'s {engine.root} is full ({size(free)} left): make room on that disk"
        )
    return engine, _image(box) if box.runtime in ENGINES else _file(box)


def here(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """Return the mounts with `~` replaced by this node's home folder."""
    return tuple(replace(mount, source=os.path.expanduser(mount.source)) for mount in mounts)


def _image(box: Container) -> str:
    """Pull the image if the job's container.pull demands it or the node lacks the image, and return the image's id."""
    found = None if box.pull == "always" else _inspect(box)
    if found is None and box.pull == "never":
        raise EngineError(
            f"the host has no image {box.image}, and `container.pull` is never: pull or load the image there"
        )
    if found is None:
        try:
            call(box.runtime, "pull", "--quiet", box.image, timeout=PULL_SECONDS)
        except EngineError as error:
            raise EngineError(f"the host has no image {box.image} and can't pull it: {error}") from error
        found = _inspect(box)
    if found is None:
        raise EngineError(f"the host has no image {box.image}, although {box.runtime} reported that it was pulled")
    made_for, own = found.get("Architecture"), ARCHITECTURES.get(platform.machine(), platform.machine())
    if made_for and made_for != own:
        raise EngineError(
            f"the image {box.image} is built for {made_for}, but this machine is {own}: build the image for {own}"
        )
    return str(found.get("Id") or "")


def _inspect(box: Container) -> dict[str, Any] | None:
    done = answer([box.runtime, "image", "inspect", box.image], ANSWER_SECONDS)
    if done.returncode == 0:
        found: list[dict[str, Any]] = parse_json(done.stdout)
        return found[0] if found else None
    if re.search(r"no such image|not known|not found", done.stderr, re.IGNORECASE):
        return None
    raise EngineError(in_words(done.stderr, box.runtime))


def _file(box: Container) -> str:
    path = os.path.expanduser(box.image)
    if path.startswith(("/", "./")) and not os.path.exists(path):
        raise EngineError(f"the host has no image file {path}: put it where every node can read it")
    return ""


def _free(folder: str) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:  # the folder belongs to root
        return None
    return found.f_bavail * found.f_frsize


# -- what the ranks may use


def node_resources(task: NodeTask, engine: Engine, environ: Mapping[str, str]) -> NodeResources:
    """Return the facts about this node that are needed to start the task's container."""
    assert task.container is not None
    uid, gid = os.getuid(), os.getgid()
    mine, cores = os.sched_getaffinity(0), os.cpu_count() or 1
    can_lift = not engine.rootless and can_lift_limits(engine_pid(engine.name))
    given = environ.get("SLURM_CPUS_ON_NODE", "")
    cpus = int(given) if given.isdigit() else task.container.cpus
    return NodeResources(
        user=f"{uid}:{gid}",
        name=user_name(uid) or str(uid),
        groups=tuple(sorted(set(os.getgroups()) - {gid})),
        rootless=engine.rootless,
        gpus=_as_named(visible_gpus(task, environ), task.container.gpu_flag),
        cpuset=",".join(ranges([str(core) for core in sorted(mine)])) if len(mine) < cores else None,
        cpus=cpus if cpus is not None and cpus < len(mine) else None,
        memory=_memory(environ) or task.container.mem,
        infiniband=os.path.isdir("/dev/infiniband"),
        devices=tuple(path for path in FAST_DEVICES if os.path.exists(path)),
        files=tuple(path for path in SITE_FILES if os.path.isfile(path)),
        memlock=can_lift,
        limits=own_limits() if engine.name == "podman" and not engine.rootless and not can_lift else (),
        host=environ.get("SLURMD_NODENAME") or socket.gethostname(),
    )


def own_limits() -> tuple[str, ...]:
    """Return this process's own limits as options for podman.

    Without these options, podman would try to raise the limits. This fails if podman has no permission for it, for
    example inside a container.
    """
    kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    return tuple(f"{name}={resource.getrlimit(kind)[1]}:{resource.getrlimit(kind)[1]}" for name, kind in kinds.items())


def visible_gpus(task: NodeTask, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that this node's ranks may use, by UUID or number. The names are also valid outside of the
    scheduler's job, because an engine's daemon runs outside of the job.

    The first of these that exists is returned:

    1. the GPUs that the run has reserved;
    2. the UUIDs in CUDA_VISIBLE_DEVICES, because UUIDs are valid everywhere and are the only names of MIG instances;
    3. the numbers in Slurm's variables, which count the machine's GPUs;
    4. the numbers in CUDA_VISIBLE_DEVICES, which may count only the GPUs of the job;
    5. all GPUs of the machine.
    """
    if not task.uses_gpus:
        return ()
    if task.reserved:
        return tuple(words_of(shown(task.reserved)[VISIBLE]))
    visible = [value for value in (task.env.get(VISIBLE), environ.get(VISIBLE)) if value is not None]
    for value in visible:
        words = words_of(value)
        if words and all(word.startswith(("GPU-", "MIG-")) for word in words):
            return tuple(words)
    for given in (environ.get("SLURM_STEP_GPUS"), environ.get("SLURM_JOB_GPUS"), *visible):
        if given is not None:
            return _numbers(given)
    return tuple(words_of(shown([each.name for each in machine_devices()]).get(VISIBLE, "")))


def _as_named(gpus: tuple[str, ...], gpu_flag: str) -> tuple[str, ...]:
    """Return the names by which the engine knows the GPUs. CDI (Container Device Interface) gets the number of a whole
    card, because some versions of CDI don't know the cards' UUIDs.
    """
    if gpu_flag != "cdi":
        return gpus
    numbers = {gpu.uuid: str(gpu.index) for gpu in look().gpus if not gpu.mig}
    return tuple(numbers.get(gpu, gpu) for gpu in gpus)


def _numbers(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        found += [str(n) for n in range(int(span[1]), int(span[2]) + 1)] if span else [part]
    return tuple(part for part in found if part not in NONE_FROM_HERE)


def _memory(environ: Mapping[str, str]) -> int | None:
    """Return how many bytes of memory Slurm gave to the job on this node. Return None if Slurm does not limit
    memory.
    """
    node, cpu = environ.get("SLURM_MEM_PER_NODE", ""), environ.get("SLURM_MEM_PER_CPU", "")
    if node.isdigit() and int(node):
        return int(node) << 20
    cores = environ.get("SLURM_CPUS_ON_NODE", "")
    return (int(cpu) * int(cores)) << 20 if cpu.isdigit() and cores.isdigit() and int(cpu) else None
