"""Encodes values as bytes for collectives. Bytes from the network are never unpickled, because pickle can run code."""

import io
import pickle
from typing import Any

import torch
from torch import Tensor

from orchestrator.training.errors import UserError

KINDS = "tensors, numbers, text, and tuples, lists, sets and dicts of them"


def encode(value: object) -> Tensor:
    """Return the value as a tensor of bytes, in the format of torch.save."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def decode(content: Tensor) -> Any:
    """Return the value that `encode` encoded, without unpickling. Raises UserError if the value's type is not in
    KINDS.
    """
    try:
        return torch.load(io.BytesIO(content.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"Ranks can only send {KINDS} to each other, and this value is of another kind.") from error
