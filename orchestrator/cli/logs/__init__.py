"""Prints logs on the terminal, and parses the options that select lines."""
