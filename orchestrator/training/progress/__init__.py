"""What a training tells of itself: heartbeats, log lines, metrics, the evaluation."""
