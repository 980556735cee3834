"""The position of a run within its training, and the number of its steps. This module has no side effects."""

from dataclasses import dataclass

from orchestrator.training.options import Options


@dataclass(frozen=True)
class Position:
    """A position in the training: the number of finished optimizer steps (`step`), the epoch, the number of samples
    that were used in this epoch (`offset`) and in all epochs (`samples`).
    """

    step: int = 0
    epoch: int = 0
    offset: int = 0
    samples: int = 0

    def after(self, count: int, epoch_samples: int) -> "Position":
        """Return the position after a step of `count` samples. The end of an epoch counts as the start of the next."""
        ended = self.offset + count >= epoch_samples
        return Position(
            step=self.step + 1,
            epoch=self.epoch + 1 if ended else self.epoch,
            offset=0 if ended else self.offset + count,
            samples=self.samples + count,
        )


def total_steps(options: Options, start: Position, epoch_samples: int) -> int:
    """Return the number of the last step of a run that continues from `start`."""
    if options.steps is not None:
        return options.steps
    a_whole_epoch = -(-epoch_samples // options.global_batch)
    left = ((options.epochs or 1) - start.epoch) * a_whole_epoch
    if start.offset:
        left += -(-(epoch_samples - start.offset) // options.global_batch) - a_whole_epoch
    return start.step + max(0, left)
