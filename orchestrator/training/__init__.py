"""Training with torch: the entrypoint `python -m orchestrator.training` and its parts, importable one by one."""
