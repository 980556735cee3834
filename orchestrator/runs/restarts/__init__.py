"""The starts of one run: its attempts, whether there is to be another start, and what it does meanwhile."""
