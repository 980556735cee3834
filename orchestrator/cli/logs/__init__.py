"""Logs on the terminal: what is asked for, and how lines are printed."""
