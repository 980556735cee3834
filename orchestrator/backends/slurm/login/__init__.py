"""Slurm through a login node: the backend, its arrays, the node itself, and what is seen of a job from here."""
