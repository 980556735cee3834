"""One rank: its argv, its side of a fork or an exec, its log, and how it ended."""
