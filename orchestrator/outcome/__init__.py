"""Judges how a run ended: the culprit, the cause, its budget, another start and its machines, the sentence, the hint.

Pure: the events of a run, the exit reports of its ranks and the scheduler's report are arguments. `rules.py` has the
table of failures. Everything that decides or shows an end calls this package: the leader, the agent inside a Slurm job,
the supervisor, status, the page, notifications and drill.
"""
