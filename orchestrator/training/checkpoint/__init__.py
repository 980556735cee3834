"""Checkpoints: their format, and how they are written, staged, resumed and exported."""
