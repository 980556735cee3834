"""The set-up in a rank's own interpreter before its program, for both forked and exec'd ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.node.launcher.rank.own_store import tell_stores_apart
from orchestrator.node.launcher.stacks import answer_with_stacks
from orchestrator.protocol.ranks import EXIT_NO_RETRY


def set_up(setup: Mapping[str, Any]) -> None:
    """Enable stack dumps and own stores in the rank, and prolong its time-outs in a debugged run.

    `setup` comes from RankStart. The debugged rank waits here for its debugger, or ends with an error message.
    """
    answer_with_stacks(setup["stack_file"])
    tell_stores_apart()
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
