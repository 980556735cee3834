"""`python -m orchestrator.supervisor`: look after the live runs of $ORCH_HOME until there are none."""

import sys

from orchestrator.errors import OrchError
from orchestrator.node.system.private import hold_umask
from orchestrator.runs.store import state_root
from orchestrator.supervisor.supervisor import supervise

hold_umask()
try:
    supervise(state_root())
except OrchError as error:
    sys.exit(f"the supervisor: {error}")
