"""What a run has written, turned into what experiment trackers read. The ranks know nothing of it."""
