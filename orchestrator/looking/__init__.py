"""Reads the state of runs: gathers the evidence and judges it. Nothing here writes, starts or ends anything."""
