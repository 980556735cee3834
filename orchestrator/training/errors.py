"""The exit codes and errors of training; an error's text is one sentence that a user can act on."""

EXIT_USAGE = 2
"""The user's input is wrong; another start would fail alike."""
EXIT_NO_RETRY = 93
"""The program asks not to be started again."""
EXIT_REQUEUE = 95
"""Stopped by a signal at a step boundary, with a checkpoint: start again."""


class UserError(Exception):
    """What the user asked for can't be done; shown without a traceback, exit code 2."""


class DataError(Exception):
    """Samples can't be read on this rank, maybe on no other; names them, the rank and the reason."""


class CheckpointError(Exception):
    """A checkpoint can't be written, or what lies there can't be trusted; names the path."""


class DivergedError(Exception):
    """The loss is no number any more: going on, or starting again from the same place, would not help."""
