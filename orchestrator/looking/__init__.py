"""Reads the state of runs: it gathers the facts and judges them. This package never writes, starts or ends anything."""
