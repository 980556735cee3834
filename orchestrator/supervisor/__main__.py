"""`python -m orchestrator.supervisor [KIND]`: look after the live runs of $ORCH_HOME until there are none.

With a kind of backend, first start the run of that kind which the standard input asks for.
"""

import sys

from orchestrator.errors import OrchError
from orchestrator.node.system.private import hold_umask
from orchestrator.runs.store import state_root
from orchestrator.supervisor.supervisor import supervise

hold_umask()
try:
    if sys.argv[1:]:
        from orchestrator.supervisor.handover import start_what_is_asked_for

        start_what_is_asked_for(sys.argv[1])
    supervise(state_root())
except OrchError as error:
    sys.exit(f"the supervisor: {error}")
