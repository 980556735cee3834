"""Judges how a run ended: which party is to blame, the cause, the error message and the hint.

It also decides whether another start follows, which retry budget this start uses up, and on which machines it runs.

The code has no side effects, because the events of a run, the exit reports of its ranks and the scheduler's report are
arguments. `rules.py` has the table of failures. All code that decides or shows an end calls this package: the leader,
the agent inside a Slurm job, the supervisor, status, the page, notifications and drill.
"""
