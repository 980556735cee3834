"""`python -m orchestrator.supervisor [KIND]`: looks after the live runs of $ORCH_HOME until there are none.

With a kind of backend, it first starts the run that the standard input requests. `... start RUN` starts a queued run in
a process that has the surroundings of its submit, and ends.
"""

import sys
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.node.system.private import hold_umask
from orchestrator.runs.store import RunDir, state_root
from orchestrator.supervisor.supervisor import supervise

hold_umask()
try:
    if sys.argv[1:2] == ["start"]:
        from orchestrator.supervisor.queue import start_by_this_program

        start_by_this_program(RunDir(Path(sys.argv[2])))
    else:
        if sys.argv[1:]:
            from orchestrator.supervisor.handover import start_what_is_asked_for

            start_what_is_asked_for(sys.argv[1])
        supervise(state_root())
except OrchError as error:
    sys.exit(f"the supervisor: {error}")
