"""Writes into a new folder, beside its own folder by a path made of __file__, and files of all kinds."""

import os
import pathlib

here = pathlib.Path(__file__).resolve().parent
(here.parent / "results").mkdir(exist_ok=True)
(here.parent / "results" / "table.txt").write_text("loss 0.25\n")
(here / "made").mkdir()
os.chdir(here / "made")
pathlib.Path("empty").write_bytes(b"")
pathlib.Path("a name with spaces and ü.txt").write_text("a\n")
pathlib.Path(here / "big.bin").write_bytes(bytes(range(256)) * 20_000)
pathlib.Path(here / "draft.pt").write_bytes(b"weights")
os.replace(here / "draft.pt", here / "final.pt")
print("rank 0 of 1 loss 0.25")
