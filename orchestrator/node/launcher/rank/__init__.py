"""One rank: what it is started as, its side of a fork or an exec, its log, and how it ended."""
