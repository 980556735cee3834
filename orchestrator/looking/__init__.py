"""Reads the state of runs: it gathers the facts about a run and computes the run's state. This package never writes,
starts or ends anything.
"""
