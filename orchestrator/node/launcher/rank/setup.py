"""Sets up a rank in its own interpreter before its program runs, for both forked and exec'd ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.node.launcher.rank.rendezvous import change_rendezvous
from orchestrator.node.launcher.stacks import answer_with_stacks
from orchestrator.protocol.layout import read_marker
from orchestrator.protocol.ranks import EXIT_NO_RETRY


def set_up(setup: Mapping[str, Any]) -> None:
    """Enable stack dumps, change torch's rendezvous, and note whether rank 0 reads its checkpoint. If a rank of the run
    is debugged, also raise the timeouts.

    `setup` is the value of RankStart.setup. The debugged rank waits in this function for its debugger. If the debugger
    can't be started, the rank exits with an error message.
    """
    answer_with_stacks(setup["stack_file"])
    change_rendezvous(setup["withheld"])
    rank = setup["withheld"].get("RANK", os.environ.get("RANK"))
    if rank == "0" and (checkpoint := os.environ.get("ORCH_RESUME_FROM")):
        from orchestrator.node.launcher.rank.checkpoint_use import note_use

        note_use(checkpoint, read_marker(os.path.dirname(setup["stack_file"])))
    if setup["debugged"] is None:
        return
    from orchestrator.node.launcher.rank.patience import stretch_timeouts

    stretch_timeouts()
    if "announce" in setup["debugged"]:
        from orchestrator.node.launcher.rank.debugger import NoDebuggerError, wait_for_debugger

        try:
            wait_for_debugger(setup["debugged"])
        except NoDebuggerError as error:
            print(f"orch: {error}", file=sys.stderr, flush=True)
            os._exit(EXIT_NO_RETRY)
