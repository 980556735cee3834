"""Imported by an exec'd rank's Python at its start: see orchestrator.node.launcher.rank.exec_hook."""

from orchestrator.node.launcher.rank.exec_hook import begin

begin()
