"""The program that writes wandb's offline folder. It reads JSON lines from stdin.

The first line describes the run, and each other line has the metrics of one step.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Write the offline folder of the run that the first line describes."""
    import wandb

    head = json.loads(sys.stdin.readline())
    settings = wandb.Settings(
        mode="offline", silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True,
        x_disable_machine_info=True, disable_job_creation=True,
    )  # fmt: skip
    run = wandb.init(
        id=head["id"], name=head["id"], project=head["project"], config=head["config"], dir=head["folder"],
        settings=settings,
    )  # fmt: skip
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    for line in sys.stdin:
        run.log(json.loads(line))
    run.summary.update(head["summary"])
    run.finish(exit_code=head["code"])


if __name__ == "__main__":
    main()
