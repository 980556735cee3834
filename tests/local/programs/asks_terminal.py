"""Asks its terminal how wide it is before it trains, as a well-known script for CIFAR-10 does for its progress bar."""

import os

_, width = os.popen("stty size", "r").read().split()  # noqa: S605 (as that script does)
print("columns", int(width) >= 0, flush=True)
