"""Makes `python -m orchestrator.cli` the command orch."""

from orchestrator.cli import main

main()
