"""What goes wrong on a GPU, and whether orch names it: hangs, and errors of CUDA and torch."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.gpu.lab import Lab

HANG = "hang: {action: restart, train: 6s, medians: 2, other: 60s}\nretry: {infra: 0, user_error: 0}\n"
# What each error has to be told as: cause, and a word of the sentence or the hint.
ERRORS = {
    "memory": ("user_error", "memory"),
    "assert": ("user_error", "assert"),
    "access": ("user_error", "illegal"),
    "ordinal": ("user_error", "ordinal"),
    "fork": ("user_error", "fork"),
}


def hangs(lab: Lab) -> dict[str, Any]:
    """Let rank 1 of two stand still in three ways, forked and exec'd: it is the one that is named, with a stack."""
    values: dict[str, Any] = {}
    ways = [("sleep", "exec"), ("sleep", "fork"), ("missing", "exec"), ("kernel", "exec")]
    for how, launcher in ways if lab.cuda else ways[:3]:
        name = f"{how}-{launcher}"
        job = lab.job(name, f"name: {name}\nlauncher: {launcher}\nscript: still.py\n{HANG}")
        begun = time.monotonic()
        ended = lab.submit(job, lab.profile(nproc=2), "--env", f"HOW={how}", "--env", f"DEVICE={lab.device}")
        verdict = ended.status["verdict"]
        assert ended.status["state"] == "failed", f"{name}: {ended.status['state']}"
        assert verdict["rank"] == 1, f"{name}: rank {verdict['rank']} was named: {verdict['reason']}"
        stacks = [path.read_text() for path in ended.folder.glob("nodes/0/attempt_0/stacks_*.txt")]
        assert any("still.py" in text for text in stacks), f"{name}: no stack"
        if lab.cuda:
            assert list(ended.folder.rglob("*nccl*")), f"{name}: NCCL's flight recorder has left nothing"
        values[name] = f"{time.monotonic() - begun:.0f} s"
    return values


def errors(lab: Lab) -> dict[str, Any]:
    """Make each error once; its cause and its hint are those of the table."""
    wrong = []
    for how, (cause, word) in ERRORS.items():
        job = lab.job(how, f"name: {how}\nscript: errs.py\nretry: {{infra: 0}}\n")
        ended = lab.submit(job, lab.profile(), "--env", f"HOW={how}")
        said = lab.orch("why", "last").stdout
        verdict = ended.status["verdict"] or {}
        if verdict.get("cause") != cause or not re.search(word, said):
            wrong.append(f"{how}: {verdict.get('cause')}: {verdict.get('reason')}; {verdict.get('hint')}")
    diverged = lab.submit("regression", lab.profile(), "--set", "job.training.lr=1e30")
    if "loss" not in str((diverged.status["verdict"] or {}).get("reason")):
        wrong.append(f"a loss of NaN: {diverged.status['verdict']}")
    assert not wrong, " / ".join(wrong)
    return {"errors": len(ERRORS) + 1}
