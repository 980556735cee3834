"""Slurm: its commands with their parsers, its batch script, its error messages and its checks."""
