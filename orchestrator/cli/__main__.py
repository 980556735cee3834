"""Runs the command orch as `python -m orchestrator.cli`."""

from orchestrator.cli import main

main()
