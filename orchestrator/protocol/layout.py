"""Paths in a run's folder that nodes and the submitting machine share. docs/design.md lists them."""

from __future__ import annotations

import re

from orchestrator.protocol.reading import names_in
from orchestrator.protocol.schedulers import FOLDERS

_JOB = "|".join(FOLDERS)  # the folders of a scheduler's job

# Patterns for the names of orch's own files in a run's folder. The run's program wrote all other files there.
_OWN_ON_NODES = (
    r"code\.baseline\.json|node\.pyz|submitit\.pyz|order\.json|shared|given|received\.json|(cancel|lost)\.json|rank0\.done"
    r"|metrics\.jsonl|result\.json|container|code\.[^/]*\.tmp"
    rf"|({_JOB})/([A-Za-z0-9_%-][A-Za-z0-9_.%-]*\.(log|pkl|sh)|\d+(_\d+)*_log\.(out|err)|again\.\d+)"
    r"|nodes/\d+/([a-z]+\.json|(agent|launcher)\.log|(events|samples|metrics)\.jsonl(\.1|\.reserve)?|start_\d+|attempt_\d+"
    r"|container_\d+\.id|second_copy|scratch|compiled|receiving)"
)
_OWN_HERE = (
    rf"(run|plan|code|handle|{_JOB}|held|queue|reserve|secrets|outbox_secrets|verdict|environment|packages|launch|labels)\.json"
    r"|pull(ed)?\.json|sending|starting|events\.jsonl|notify\.log|outbox|(collect|outputs|logs|labels)\.lock|trackers"
    r"|[^/]*\.replay-[0-9a-f]{6}"
)
# Names that `temporary_name` and `partial_of` made.
_BEING_WRITTEN = r"\.[^/]*\.([0-9a-f]{8}\.[0-9a-f]{8}\.\d+\.tmp|[0-9a-f-]+\.partial)"
_RUN = r"\..*|.*-[abcdefghjkmnpqrstuvwxyz2-9]{6}(\.\d+)?(\.replay-[0-9a-f]{6})?"

GIVEN = "given"  # folder of the checkpoint from which a run starts, and the first part of that checkpoint's name


def node_folder(run_dir: str, node_rank: int) -> str:
    """Return the folder that only this node's agent, launcher and ranks write to."""
    return f"{run_dir}/nodes/{node_rank}"


def lost_file(run_dir: str) -> str:
    """Return the file in which the submitting machine tells a node's agent which other agents have died."""
    return f"{run_dir}/lost.json"


def attempt_folder(node_dir: str, attempt: int) -> str:
    """Return the folder of one attempt: rank logs, errors, heartbeats."""
    return f"{node_dir}/attempt_{attempt}"


def newest_attempt(node_dir: str) -> str:
    """Return the folder of a node's newest attempt, or of attempt 0 if there is none yet."""
    numbers = [int(name[8:]) for name in names_in(node_dir) if name.startswith("attempt_") and name[8:].isdigit()]
    return attempt_folder(node_dir, max(numbers, default=0))


def debugger_file(attempt_dir: str, rank: int) -> str:
    """Return the file in which a rank that waits for a debugger announces its address."""
    return f"{attempt_dir}/debugger_{rank}.json"


def samples_file(node_dir: str) -> str:
    """Return the file to which a node's agent appends samples of the node's resource usage. Older samples are in a
    second file, whose name ends in `.1`.
    """
    return f"{node_dir}/samples.jsonl"


def metrics_file(run_dir: str) -> str:
    """Return the file to which rank 0 appends its metrics."""
    return f"{run_dir}/metrics.jsonl"


def read_metrics_file(node_dir: str) -> str:
    """Return the file to which node 0's agent appends metrics that it reads from the program's own files."""
    return f"{node_dir}/metrics.jsonl"


def read_marker(attempt_dir: str) -> str:
    """Return the file that rank 0 creates once its program has read the checkpoint that was offered to the attempt."""
    return f"{attempt_dir}/checkpoint_read"


def result_file(folder: str) -> str:
    """Return the file to which rank 0 writes the program's result. It is in the run's folder or, in a container, in
    the attempt's folder.
    """
    return f"{folder}/result.json"


def archive_file(run_dir: str) -> str:
    """Return the path of the archive with orch's code for the nodes."""
    return f"{run_dir}/node.pyz"


def output_folder(run_dir: str) -> str:
    """Return $ORCH_OUTPUT_DIR, whose files are kept with the run."""
    return f"{run_dir}/outputs"


def is_own_file(path: str, *, here: bool) -> bool:
    """Return whether orch itself wrote the file or folder with this relative path in a run's folder.

    `here` tells whether this is the submitting machine, which keeps the run's records in the same folder.
    """
    known = f"{_OWN_ON_NODES}|{_OWN_HERE}" if here else _OWN_ON_NODES
    parent, _, name = path.rpartition("/")
    is_being_written = (not parent or parent.startswith(("nodes/", *FOLDERS))) and re.fullmatch(_BEING_WRITTEN, name)
    return bool(is_being_written or re.fullmatch(known, path))


def is_run_folder(name: str) -> bool:
    """Return whether an entry beside a run's folder is another run's folder or a hidden file of orch."""
    return re.fullmatch(_RUN, name, re.DOTALL) is not None


def container_view(run_dir: str) -> str:
    """Return the folder that a container sees as the parent of the run's folder.

    Files that ranks write beside or above their working folder are kept in this folder, which has none of orch's
    records.
    """
    return f"{run_dir}/container"


def given_folder(run_dir: str) -> str:
    """Return the folder, on a machine other than the submitting one, for the checkpoint from which a run starts."""
    return f"{run_dir}/{GIVEN}"


def baseline_file(code_dir: str) -> str:
    """Return the file that lists the sizes and times of the code's files before any rank could change them."""
    return f"{code_dir}.baseline.json"


def second_copy_file(run_dir: str) -> str:
    """Return the file in which node 0's agent records which checkpoint node 1 has as a second copy.

    Rank 0 waits for this record before the next save. The file has a folder of its own, which a container can see.
    """
    return f"{node_folder(run_dir, 0)}/second_copy/newest.json"
