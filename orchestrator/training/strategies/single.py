"""single: one process on one device, and no process group."""

from orchestrator.training.strategies.base import Strategy


class Single(Strategy):
    """The plain training loop, which all other strategies are held against."""

    one_process = True
