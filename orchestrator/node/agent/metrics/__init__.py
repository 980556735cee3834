"""Reads the metrics that the training program writes to its own files, on node 0, as the files grow."""
