"""Validates and plans a request to run a job, and records it as a run. Submits and the supervisor use this package."""
