"""Join the process group, say when, and stay until the file `release` appears, so that memory can be looked at."""

import os
import time
from pathlib import Path

import torch.distributed as dist
from stamp import stamp

SECONDS = 60.0

stamp("started")
dist.init_process_group("gloo")
dist.barrier()
stamp("joined")
end = time.monotonic() + SECONDS
while not (Path(os.environ["BENCH_OUT"]) / "release").exists() and time.monotonic() < end:
    time.sleep(0.02)
dist.destroy_process_group()
