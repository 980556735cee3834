"""CIFAR-10 for a task of one's own: `from orchestrator.training.cifar import cifar10`."""

from orchestrator.training.data.cifar import cifar10

__all__ = ["cifar10"]
