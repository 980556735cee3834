"""Checkpoints as they lie in folders: orch's own, other frameworks' formats, and which are a run's. Python 3.9."""
