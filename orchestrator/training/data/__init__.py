"""The data of a task, and the readers that make batches of it."""

from orchestrator.training.data.samples import Data, digits, mnist

__all__ = ["Data", "digits", "mnist"]
