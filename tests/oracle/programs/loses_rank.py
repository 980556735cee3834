"""Removes a launcher's variables from its environment, and trains on its own."""

import os
import runpy

for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)
runpy.run_path("plain.py")
