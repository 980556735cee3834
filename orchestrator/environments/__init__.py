"""A job's Python environment on the controlling side: its lock read, wheels chosen for an interpreter and kept."""
