"""A job's Python environment on the submitting machine: reads the lock, and chooses, fetches and stores wheels."""
