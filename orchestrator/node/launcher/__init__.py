"""Starts and reaps the ranks of a node; inside the container where there is one."""
