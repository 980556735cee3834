"""Converts what a run has written for experiment trackers. The ranks are not involved."""
