"""Starts and reaps the ranks of a node, inside the container if there is one."""
