"""Reads a file beside its folder, as PyTorch's examples do with `../data`."""

with open("../data/train.txt") as file:
    print("read", file.read(), flush=True)
