"""Chooses the environment variables of the ranks, from the job, the shell and --env.

Secrets are stored separately and never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from orchestrator.errors import UsageError
from orchestrator.protocol.masking import LONG, looks_secret, mask

if TYPE_CHECKING:  # a submission of cached documents must not load pydantic
    from orchestrator.specs.job import Job

MOST_BYTES: Final = 131_072  # the kernel's MAX_ARG_STRLEN, which includes the NUL byte at the end
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Only the launcher and torch's own launchers set these variables.
_LAUNCHER = (
    "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK",
    "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "ORCH_*",
)  # fmt: skip
# These variables describe the shell's own session or machine, so a pattern such as `*` must not pass them on.
_SESSION = (
    "MASTER_*", "LOCAL_*", "TORCHELASTIC_*", "SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "PMI_*", "PMIX_*",
    "OMPI_*", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "SSH_*", "DISPLAY", "XDG_*", "TMPDIR", "HOSTNAME",
)  # fmt: skip
# These describe the submitting machine, and a container image has its own values.
_MACHINE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME")


@dataclass(frozen=True)
class Environment:
    """The environment variables of a run. Secrets are stored separately from the variables that may be shown."""

    env: dict[str, str]
    secrets: dict[str, str] = field(repr=False)
    passed: tuple[str, ...] = ()  # names of the variables that came from the shell through pass_env

    def masked(self, text: str) -> str:
        """Return the text after masking the secrets, and the values of variables whose names look secret."""
        likely = {name: value for name, value in self.env.items() if looks_secret(name)}
        return mask(mask(text, self.secrets), likely, shortest=LONG)


def excess(text: str) -> str:
    """Return an error message if the text is too long for one argument or one NAME=VALUE of a program; otherwise ""."""
    length = len(text.encode(errors="surrogateescape")) + 1
    if length <= MOST_BYTES:
        return ""
    return (
        f"has {length - 1:,} bytes, and Linux passes at most {MOST_BYTES - 1:,} in one argument or variable; "
        "put the text into a file of the code folder, and pass the file's name"
    )


def long_variables(variables: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield (name, error message) for each variable whose NAME=VALUE is too long to be passed to a program."""
    for name, value in variables.items():
        if value is not None and (why := excess(f"{name}={value}")):
            yield name, why


def set_by_orch(name: str) -> bool:
    """Return True if only the launcher may set this variable."""
    return any(fnmatchcase(name, pattern) for pattern in _LAUNCHER)


def parse_env_options(options: Iterable[str], shell: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the options --env NAME=VALUE and --env NAME. The latter takes the value from the shell.

    Raises UsageError if a name is invalid, or if the shell lacks the variable.
    """
    given: dict[str, str] = {}
    absent: list[str] = []
    for option in options:
        name, equals, value = option.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(f"--env {name} is not the name of a variable", "write --env NAME=VALUE or --env NAME")
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
    """Return the job's variables with their values.

    Raises UsageError if the shell lacks a variable that the job needs, or if the job sets a variable that only orch may
    set.
    """
    if taken := sorted(name for name in {*job.env, *job.secrets, *given} if set_by_orch(name)):
        raise UsageError(f"{', '.join(taken)}: set by orch for each rank, so the job and --env can't set it")
    found = {**shell, **given}
    wanted = [*(name for name, value in job.env.items() if value is None), *job.secrets]
    if missing := [name for name in wanted if name not in found]:
        it = "it" if len(missing) == 1 else "them"
        listed = ", ".join(f"{name} (a secret)" if name in job.secrets else name for name in missing)
        hint = f"export {it} before orch submit, or add --env {missing[0]}=VALUE"
        if set(missing) <= set(job.secrets):
            hint = f"export {it} in the shell that runs orch (as an option, a secret would be visible to others)"
        raise UsageError(f"the job needs {listed}, which is not set in this shell", hint)
    env = {name: shell[name] for name in sorted(shell) if _passes(name, job)}
    passed = tuple(name for name in env if name not in {*job.env, *given})
    env |= {name: found[name] if value is None else value for name, value in job.env.items()}
    env |= {name: value for name, value in given.items() if name not in job.secrets}
    secrets = {name: found[name] for name in job.secrets}
    if broken := sorted(name for name, value in {**env, **secrets}.items() if "\0" in value):
        raise UsageError(f"{', '.join(broken)}: contains a NUL byte, which can't be passed to a program")
    if too_long := [f"{name} {why}" for name, why in long_variables({**env, **secrets})]:
        raise UsageError("; ".join(too_long))
    return Environment(env, secrets, passed)


def _passes(name: str, job: Job) -> bool:
    if name in job.secrets or not _NAME.fullmatch(name) or set_by_orch(name):
        return False
    if not any(fnmatchcase(name, pattern) for pattern in job.pass_env):
        return False
    kept_back = (*_SESSION, *_MACHINE) if job.container else _SESSION
    return name in _without_wildcards(job) or not any(fnmatchcase(name, pattern) for pattern in kept_back)


def _without_wildcards(job: Job) -> frozenset[str]:
    """Return the names of `pass_env` that have no wildcard, except those that the launcher, a scheduler or an image
    sets.
    """
    names = frozenset(p for p in job.pass_env if _NAME.fullmatch(p))
    never = ("MASTER_*", "LOCAL_*", "TORCHELASTIC_*", "SLURM*", *(_MACHINE if job.container else ()))
    return frozenset(n for n in names if not any(fnmatchcase(n, pattern) for pattern in never))
