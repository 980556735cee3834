"""The metrics that the training program writes to files of its own, read on node 0 as the files grow."""
