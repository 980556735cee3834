"""Validates and plans a request, and records it as a run.

This package is below the supervisor, which also starts runs.
"""
