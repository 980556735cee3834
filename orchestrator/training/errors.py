"""The exit codes and errors of training. An error's text is one sentence on which a user can act."""

from orchestrator.protocol.ranks import EXIT_NO_RETRY, EXIT_REQUEUE

__all__ = ["EXIT_NO_RETRY", "EXIT_REQUEUE", "EXIT_USAGE", "CheckpointError", "DataError", "DivergedError", "UserError"]

EXIT_USAGE = 2
"""The user's input is wrong, so another start would fail too."""


class UserError(Exception):
    """The user's request can't be carried out. The program prints the text, without a traceback, and exits with 2."""


class DataError(Exception):
    """Samples can't be read on this rank. The text names the samples, the rank and the reason."""


class CheckpointError(Exception):
    """A checkpoint can't be written, or an existing checkpoint can't be trusted. The text names the path."""


class DivergedError(Exception):
    """The loss is NaN or infinite. Neither continuing nor a restart from the same checkpoint would help."""
