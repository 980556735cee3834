"""Import a module as the launcher warms it, then ask its probe and a forked child whether CUDA works after a fork."""

import importlib
import importlib.util
import json
import os
import sys

from orchestrator.node.launcher.warmup import NVML_CHECK, is_cuda_broken_by_a_fork, open_gpus

name = sys.argv[1]
if importlib.util.find_spec(name.partition(".")[0]) is None:
    sys.exit(3)
os.environ[NVML_CHECK] = "1"  # as while the launcher imports
importlib.import_module("torch")
importlib.import_module(name)
del os.environ[NVML_CHECK]
probe = not (open_gpus() or is_cuda_broken_by_a_fork())
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    works = b"1"
    try:
        import torch

        torch.ones(1, device="cuda").item()
    except RuntimeError:
        works = b"0"
    os.write(writes, works)
    os._exit(0)
os.close(writes)
answer = os.read(reads, 1)
os.waitpid(child, 0)
print(json.dumps({"probe": probe, "child": answer == b"1"}))
