"""Writes over files that were in its folder: a small and a large one that git ignores, and one that git knows."""

import pathlib

with open("history.txt", "a") as file:
    file.write("second\n")
pathlib.Path("old.pt").write_bytes(b"new weights")
pathlib.Path("large.bin").write_bytes(b"new" * 2_000_000)
print("rank 0 of 1 loss 0.5")
