"""The data of a task, and how it is read in batches."""

from orchestrator.training.data.samples import Data, digits, mnist

__all__ = ["Data", "digits", "mnist"]
