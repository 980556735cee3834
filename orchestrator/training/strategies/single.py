"""The strategy single, which uses one process on one device without a process group."""

from orchestrator.training.strategies.base import Strategy


class Single(Strategy):
    """Runs the plain training loop. The tests compare the results of all other strategies with it."""

    one_process = True
