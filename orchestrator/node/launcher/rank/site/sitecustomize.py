"""What an exec'd rank's Python imports as it starts: see orchestrator.node.launcher.rank.exec_hook."""

from orchestrator.node.launcher.rank.exec_hook import begin

begin()
