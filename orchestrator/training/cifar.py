"""CIFAR-10 for the user's own tasks: `from orchestrator.training.cifar import cifar10`."""

from orchestrator.training.data.cifar import cifar10

__all__ = ["cifar10"]
