"""Checkpoint folders: orch's own format, other frameworks' formats, and which belong to a run. Python 3.9."""
