"""Trains by plain Python, and leaves files of the names that everybody uses."""

import argparse
import os
import struct

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--code", type=int, default=0)
args = parser.parse_args()
weight = 0.0
with open("metrics.csv", "w") as rows:
    rows.write("step,loss\n")
    for step in range(1, 6):
        weight -= args.lr * (weight - 3)
        rows.write(f"{step},{(weight - 3) ** 2:.6f}\n")
os.makedirs("out/last", exist_ok=True)
for name in ("model.pt", "out/last/model.pt"):
    with open(name, "wb") as file:
        file.write(struct.pack("d", weight))
print(f"rank 0 of 1 loss {(weight - 3) ** 2:.6f}")
raise SystemExit(args.code)
