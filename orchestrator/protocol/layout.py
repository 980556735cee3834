"""Names in a run's folder that are known on both sides: docs/design.md, where truth lives. Python 3.9."""

from __future__ import annotations

import os

GIVEN = "given"  # the folder, and the first part of the name, of a checkpoint that a run was given to start from


def node_folder(run_dir: str, node_rank: int) -> str:
    """Return the folder that only this node's agent, launcher and ranks write."""
    return f"{run_dir}/nodes/{node_rank}"


def attempt_folder(node_dir: str, attempt: int) -> str:
    """Return the folder of one attempt: rank logs, errors, heartbeats."""
    return f"{node_dir}/attempt_{attempt}"


def newest_attempt(node_dir: str) -> str:
    """Return the folder of the newest attempt of a node; of the first one where there is none yet."""
    numbers = [int(name[8:]) for name in _names(node_dir) if name.startswith("attempt_") and name[8:].isdigit()]
    return attempt_folder(node_dir, max(numbers, default=0))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def debugger_file(attempt_dir: str, rank: int) -> str:
    """Return where a rank that waits for a debugger says how it is reached."""
    return f"{attempt_dir}/debugger_{rank}.json"


def samples_file(node_dir: str) -> str:
    """Return where a node's agent appends how busy the node is; what is older is in the file of this name and `.1`."""
    return f"{node_dir}/samples.jsonl"


def metrics_file(run_dir: str) -> str:
    """Return where rank 0 appends its metrics."""
    return f"{run_dir}/metrics.jsonl"


def result_file(folder: str) -> str:
    """Return where rank 0 leaves the run's result: in the run's folder, in a container in its attempt's."""
    return f"{folder}/result.json"


def archive_file(run_dir: str) -> str:
    """Return the archive of the code that runs on nodes."""
    return f"{run_dir}/node.pyz"


def output_folder(run_dir: str) -> str:
    """Return $ORCH_OUTPUT_DIR: what the ranks write there is kept with the run."""
    return f"{run_dir}/outputs"


def given_folder(run_dir: str) -> str:
    """Return where on another machine the checkpoint is that a run starts from."""
    return f"{run_dir}/{GIVEN}"


def baseline_file(code_dir: str) -> str:
    """Return where the sizes and times of the code are, as they were before any rank could change it."""
    return f"{code_dir}.baseline.json"


def second_copy_file(run_dir: str) -> str:
    """Return where node 0's agent says which checkpoint node 1 has; rank 0 waits for it before its next save.

    It has a folder of its own, which a container sees.
    """
    return f"{node_folder(run_dir, 0)}/second_copy/newest.json"
