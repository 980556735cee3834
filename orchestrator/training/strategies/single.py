"""single: one process on one device, and no process group."""

from orchestrator.training.strategies.base import Strategy


class Single(Strategy):
    """The plain training loop, with which all other strategies are compared."""

    one_process = True
