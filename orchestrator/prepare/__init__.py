"""Validates and plans a request, and records it as a run. Submits and the supervisor use this package."""
