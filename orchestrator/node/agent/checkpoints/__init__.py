"""What a node's agent does with checkpoints: found, sent home, a second copy on another node."""
