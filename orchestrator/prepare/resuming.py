"""Finds the checkpoint that `--resume` or `checkpoint.resume` names, and checks before the run starts whether the job
can load its format.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.protocol.checkpoints.checkpoint_dir import newest
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.checkpoints.search import Saved, at

if TYPE_CHECKING:
    from orchestrator.specs.job import Job

NAMES = {
    Format.ORCH: "orch's own format",
    Format.HF: "the format of Hugging Face's Trainer",
    Format.LIGHTNING: "the format of Lightning",
    Format.DCP: "the format of torch.distributed.checkpoint",
    Format.DEEPSPEED: "the format of DeepSpeed",
    Format.FILES: "a file of weights",
}
"""The formats as messages name them."""


def given_to(job: Job, code_dir: Path) -> Saved | None:
    """Return the checkpoint that the job's `checkpoint.resume` names. Return None if it names no path, or if this
    machine has no complete checkpoint at the path.
    """
    resume = job.checkpoint.resume
    if resume in ("auto", "never"):
        return None
    path = os.path.join(code_dir, os.path.expanduser(resume))
    own = newest(path) if job.training is not None else None  # the folder may have checkpoints of other formats too
    return at(path if own is None else f"{path}/{own}")


def check_format(job: Job, code_dir: Path) -> None:
    """Raise UsageError, with the checkpoint's path and format, if the job can't load its checkpoint."""
    if (given := given_to(job, code_dir)) is None:
        return
    what = f"{given.path} is {NAMES[given.format]}"
    if job.training is not None and given.format is not Format.ORCH:
        raise UsageError(
            f"this job can't be resumed from that checkpoint: {what}, and `training:` loads orch's own format only",
            "resume it with a script of your own, which loads the path in ORCH_RESUME_FROM, or submit without --resume",
        )
    if job.checkpoint.format not in ("auto", "files", given.format):
        raise UsageError(
            f"this job can't be resumed from that checkpoint: {what}, and checkpoint.format is {job.checkpoint.format}",
            "name another checkpoint, or set checkpoint.format: auto",
        )


def note_on_resume(job: Job, code_dir: Path) -> str:
    """Return a note on the checkpoint and on the code that loads it; empty if there is no checkpoint."""
    if (given := given_to(job, code_dir)) is None:
        return ""
    step = f" of step {given.step}" if given.is_counted else ""
    what = f"note: the run resumes from {given.path}{step} ({NAMES[given.format]})"
    if job.training is not None:
        return f"{what}, which the training loads"
    library = ", for example by run.resume()" if given.format is Format.ORCH else ""
    return (
        f"{what}; its path is passed to every rank in ORCH_RESUME_FROM, and the script has to load the "
        f"checkpoint{library}"
    )
