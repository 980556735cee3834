"""Batches for turns that never end: the trainer's own loop stops with an epoch, and takes its last, small batch too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from orchestrator.training.data.sampler import Share
from orchestrator.training.data.samples import Tensors
from orchestrator.training.train import Trainer


def whole_batches(trainer: Trainer) -> Iterator[tuple[Tensors, Share]]:
    """Yield what `Trainer._one_step` takes: whole global batches of one epoch after the other."""
    for epoch in itertools.count():
        for tensors, share in trainer.train_samples.batches(trainer.sampler.shares(), epoch):
            if share.count == trainer.options.global_batch:
                yield tensors, share
