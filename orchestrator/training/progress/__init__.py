"""The reports of a training: heartbeats, log lines, metrics, the evaluation."""
