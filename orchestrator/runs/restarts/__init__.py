"""The starts of one run: its attempts, whether another start follows, and what the run does meanwhile."""
