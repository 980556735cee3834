"""The program `python -m orchestrator.supervisor`, in three forms.

python -m orchestrator.supervisor            supervise the live runs of $ORCH_HOME until no run is live
python -m orchestrator.supervisor KIND       start the run that `orch submit` requests over stdin, then supervise
python -m orchestrator.supervisor start RUN  start one queued run with the environment of its submission, then end
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
            from orchestrator.supervisor.handover import start_requested_run

            start_requested_run(sys.argv[1])
        from orchestrator.supervisor.heartbeat import start_again

        supervise(state_root(), start_again)
except OrchError as error:
    sys.exit(f"the supervisor: {error}")
