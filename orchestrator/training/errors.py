"""The exit codes and errors of training. An error's text is one sentence on which a user can act."""

EXIT_USAGE = 2
"""The user's input is wrong, so another start would fail too."""
EXIT_NO_RETRY = 93
"""The program requests not to be started again."""
EXIT_REQUEUE = 95
"""The program was stopped by a signal at a step boundary and saved a checkpoint, so it can be started again."""


class UserError(Exception):
    """The user's request can't be carried out. The program prints the text, without a traceback, and exits with 2."""


class DataError(Exception):
    """Samples can't be read on this rank. The text names the samples, the rank and the reason."""


class CheckpointError(Exception):
    """A checkpoint can't be written, or an existing checkpoint can't be trusted. The text names the path."""


class DivergedError(Exception):
    """The loss is NaN or infinite. Neither continuing nor a restart from the same checkpoint would help."""
