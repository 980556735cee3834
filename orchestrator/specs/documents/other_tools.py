"""Maps names and notations of other tools' files to those of jobs and profiles. This module has no side effects."""

from __future__ import annotations

import json
import re
from typing import Final

_BETWEEN_PAIRS: Final = re.compile(r"[\s,]+(?=--|\w+=)")
_KEY: Final = re.compile(r"[\w-]+")
_PLAIN: Final = re.compile(r"[A-Za-z_./][\w./@-]*")  # YAML reads such a text as a string

# Maps names of other launchers to orch's names.
ELSEWHERE: Final = {
    "node": "nodes",
    "nnodes": "nodes",
    "num_nodes": "nodes",
    "num_machines": "nodes",
    "nproc": "nproc_per_node",
    "num_processes": "nproc_per_node",
    "tasks_per_node": "nproc_per_node",
    "ntasks_per_node": "nproc_per_node",
    "dist_backend": "backend",
    "environment": "env",
    "entrypoint": "command",
    "image": "container.image",
    "batch": "training.global_batch",
    "batch_size": "training.global_batch",
    "learning_rate": "training.lr",
    "max_epochs": "training.epochs",
    "num_epochs": "training.epochs",
    "max_steps": "training.steps",
    "num_workers": "training.workers",
    "random_seed": "training.seed",
    "identity_file": "key",
    "identityfile": "key",
    "ssh_key": "key",
    "ssh_private_key": "key",
    "private_key": "key",
    "username": "user",
    "ssh_user": "user",
    "proxyjump": "jump",
    "proxy_jump": "jump",
    "retries": "retry",
    "max_restarts": "retry.infra",
}
# Names in other launchers that are not fields of orch, and the settings to use instead.
ANSWERS: Final = {
    "password": "orch logs in by keys: run ssh-copy-id USER@HOST once, and name it in 'key' or load it into an agent",
    "modules": "write setup: [module load NAME]",
    "module_load": "write setup: [module load NAME]",
    "conda": "write python: PATH/bin/python of that environment",
    "conda_env": "write python: PATH/bin/python of that environment",
}
ANSWERS_OF_PROFILE: Final = {"module": ANSWERS["modules"], "virtualenv": ANSWERS["conda"], "venv": ANSWERS["conda"]}
LAUNCHERS: Final = ("deepspeed", "srun", "mpirun", "mpiexec", "horovodrun", "ray", "submitit", "colossalai", "none")
# Fields with another name in this kind of profile.
OF_KIND: Final = {
    ("gpus", "slurm"): "gpus_per_node (their number) or gres (gpu:a100:4)",
    ("gpus", "ssh"): "nproc_per_node (a rank for each GPU, with auto all of them)",
    ("gpus", "local"): "nproc_per_node (a rank for each GPU, with auto all of them)",
}


def answer_to(name: str, *, of_job: bool) -> str:
    """Return the replacement for the field `name` of another tool, as the end of a sentence; empty if orch does not
    know such a field.
    """
    answer = ANSWERS.get(name) or ("" if of_job else ANSWERS_OF_PROFILE.get(name, ""))
    if not answer:
        return ""
    return f" of the job; in the profile, {answer}" if of_job else f"; {answer}"


def as_mapping(path: tuple[str | int, ...], value: object) -> str:
    """Suggest a mapping for a value that should be a mapping; empty if no mapping is obvious."""
    if path == ("retry",) and type(value) is int:
        return (
            f"; write {{infra: {value}}} for failures of nodes and network, {{user_error: {value}}} for the program's"
        )
    texts = [node.value for node in value] if isinstance(value, list) else _BETWEEN_PAIRS.split(str(value))
    pairs = [str(text).strip().lstrip("-").partition("=") for text in texts]
    if not pairs or not all(equals and _KEY.fullmatch(name) for name, equals, _ in pairs):
        return ""
    written = (f"{name}: {text if _PLAIN.fullmatch(text) else json.dumps(text)}" for name, _, text in pairs)
    return f"; write {{{', '.join(written)}}}"
