"""Takes a LOCAL_RANK for a launcher's order to use GPUs, as yolov5 does, and trains on the CPU without one."""

import os
import runpy

LOCAL_RANK = int(os.getenv("LOCAL_RANK", "-1"))
if LOCAL_RANK != -1:
    raise SystemExit("insufficient CUDA devices for DDP command")
runpy.run_path("plain.py")
