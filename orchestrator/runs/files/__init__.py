"""Reads the files in a run's folder: logs, metrics, checkpoints, outputs, the copy of the code."""
