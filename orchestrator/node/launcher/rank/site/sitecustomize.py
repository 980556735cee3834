"""Sets up an exec'd rank. Python imports this module at its start, because of node/launcher/rank/exec_hook.py."""

from orchestrator.node.launcher.rank.exec_hook import begin

begin()
