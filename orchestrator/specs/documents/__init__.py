"""Finds and reads the files that a user writes, keeps the place of every value, and reports mistakes."""
