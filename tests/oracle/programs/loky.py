"""Trains in a group of two workers of joblib's loky, each in a session of its own."""

import os
import socket

from joblib import Parallel, delayed


def rank_of(rank: int, port: int) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank)
    )
    import torch.distributed as dist
    from ddp import train

    dist.init_process_group("gloo")
    train("loky_")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        free = held.getsockname()[1]
    Parallel(n_jobs=2, backend="loky")(delayed(rank_of)(rank, free) for rank in range(2))
