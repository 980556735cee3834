"""Which variables the ranks get, from the job, the shell and --env; secrets are kept apart and never shown."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.spec import Job

MASKED: Final = "***"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Shorter values stand in too many innocent words; they are masked only where their name stands before them.
_SHORT: Final = 4

# What the launcher and torch's own launchers set: nobody else may.
_LAUNCHER = (
    "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK",
    "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "ORCH_*",
)  # fmt: skip
# What describes the shell's own session or machine: a pattern such as `*` must not carry it elsewhere.
_SESSION = (
    "MASTER_*", "LOCAL_*", "TORCHELASTIC_*", "SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "PMI_*", "PMIX_*",
    "OMPI_*", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "SSH_*", "DISPLAY", "XDG_*", "TMPDIR", "HOSTNAME",
)  # fmt: skip
# Folders of the submitting machine, which an image has elsewhere.
_MACHINE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME")


@dataclass(frozen=True)
class Environment:
    """The variables that may be shown, and those that may not."""

    env: dict[str, str]
    secrets: dict[str, str] = field(repr=False)


def set_by_orch(name: str) -> bool:
    """Is this a variable that the launcher sets itself?"""
    return any(fnmatchcase(name, pattern) for pattern in _LAUNCHER)


def parse_env_options(options: Iterable[str], shell: Mapping[str, str]) -> dict[str, str]:
    """The values of --env NAME=VALUE and --env NAME (from the shell); UsageError names what is wrong."""
    given: dict[str, str] = {}
    absent: list[str] = []
    for option in options:
        name, equals, value = option.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(f"--env {name}: is not the name of a variable", "write --env NAME=VALUE or --env NAME")
        if equals:
            given[name] = value
        elif name in shell:
            given[name] = shell[name]
        else:
            absent.append(name)
    if absent:
        names = ", ".join(absent)
        raise UsageError(f"--env {names}: not set in this shell", f"export {absent[0]}, or write --env NAME=VALUE")
    return given


def resolve(job: Job, shell: Mapping[str, str], given: Mapping[str, str]) -> Environment:
    """The job's variables with their values; UsageError lists every one that has none, or that only orch may set."""
    if taken := sorted(name for name in {*job.env, *job.secrets, *given} if set_by_orch(name)):
        raise UsageError(f"{', '.join(taken)}: set by orch for each rank, so neither the job nor --env may")
    found = {**shell, **given}
    wanted = [*(name for name, value in job.env.items() if value is None), *job.secrets]
    if missing := [name for name in wanted if name not in found]:
        it = "it" if len(missing) == 1 else "them"
        listed = ", ".join(f"{name} (a secret)" if name in job.secrets else name for name in missing)
        hint = f"export {it} before orch submit, or add --env {missing[0]}=VALUE"
        if set(missing) <= set(job.secrets):
            hint = f"export {it} in the shell that runs orch (as an option, a secret would be visible to others)"
        raise UsageError(f"the job needs {listed}, which this shell doesn't have", hint)
    env = {name: shell[name] for name in sorted(shell) if _passes(name, job)}
    env |= {name: found[name] if value is None else value for name, value in job.env.items()}
    env |= {name: value for name, value in given.items() if name not in job.secrets}
    secrets = {name: found[name] for name in job.secrets}
    if broken := sorted(name for name, value in {**env, **secrets}.items() if "\0" in value):
        raise UsageError(f"{', '.join(broken)}: contains a NUL byte, which no program can be given")
    return Environment(env, secrets)


def _passes(name: str, job: Job) -> bool:
    if name in job.secrets or not _NAME.fullmatch(name) or set_by_orch(name):
        return False
    if not any(fnmatchcase(name, pattern) for pattern in job.pass_env):
        return False
    kept_back = (*_SESSION, *_MACHINE) if job.container else _SESSION
    return name in _without_wildcards(job) or not any(fnmatchcase(name, pattern) for pattern in kept_back)


def _without_wildcards(job: Job) -> frozenset[str]:
    """Names that are written out are meant, but not the launcher's, a scheduler's or, for an image, the machine's."""
    names = frozenset(p for p in job.pass_env if _NAME.fullmatch(p))
    never = ("MASTER_*", "LOCAL_*", "TORCHELASTIC_*", "SLURM*", *(_MACHINE if job.container else ()))
    return frozenset(n for n in names if not any(fnmatchcase(n, pattern) for pattern in never))


def mask(text: str, secrets: Mapping[str, str]) -> str:
    """The text with every secret value, as it is or as JSON or a shell would write it, replaced by ***."""
    hidden: dict[str, str] = {}
    for name, value in secrets.items():
        if not value:
            continue
        if len(value) < _SHORT:
            hidden[f"{name}={value}"] = f"{name}={MASKED}"
            continue
        lines = [line for line in value.splitlines() if len(line) >= 2 * _SHORT]
        for form in (value, json.dumps(value)[1:-1], shlex.quote(value), repr(value)[1:-1], *lines):
            hidden[form] = MASKED
    if not hidden:
        return text
    longest_first = sorted(hidden, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda match: hidden[match[0]], text)
