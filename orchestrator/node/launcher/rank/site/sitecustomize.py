"""Sets up an exec'd rank. Python imports this module at its start, because node/launcher/rank/exec_hook.py has put
the module's folder into PYTHONPATH.
"""

from orchestrator.node.launcher.rank.exec_hook import begin

begin()
