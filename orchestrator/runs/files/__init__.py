"""What lies in a run's folder, read: logs, metrics, checkpoints, outputs, the copy of the code."""
