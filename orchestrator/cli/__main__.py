"""`python -m orchestrator.cli` is the command orch."""

from orchestrator.cli import main

main()
