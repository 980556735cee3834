"""What this rank was given, what it is shown, and which card that is to CUDA."""

import json
import os

import torch

card = torch.cuda.get_device_properties(0)
print(
    json.dumps(
        {
            "given": os.environ["ORCH_GPUS"],
            "shown": os.environ["CUDA_VISIBLE_DEVICES"],
            "order": os.environ["CUDA_DEVICE_ORDER"],
            "uuid": f"GPU-{card.uuid}",
            "count": torch.cuda.device_count(),
        }
    ),
    flush=True,
)
