"""Steps of one small all_reduce each, one stamp a step, for a minute at most: somebody is going to kill a rank."""

import time

import torch
import torch.distributed as dist
from stamp import stamp

SECONDS = 90.0
PAUSE = 0.02

stamp("started")
dist.init_process_group("gloo")
gradient = torch.ones(1000)
end = time.monotonic() + SECONDS
step = 0
while time.monotonic() < end:
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()
    step += 1
    stamp("step", step=step)
    time.sleep(PAUSE)
