"""Containers: what starts a launcher in one, and what this node adds to it."""
