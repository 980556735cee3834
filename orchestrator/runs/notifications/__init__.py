"""Notifications about runs: what is due, to whom, and what was sent."""
