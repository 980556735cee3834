"""Submissions of many runs: the points of a sweep, and the space of a search."""
