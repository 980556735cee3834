"""The command line: parse, call an operation, choose a renderer. Nothing else prints or exits."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

import click

from orchestrator.cli.group import orch, say
from orchestrator.errors import EXIT_INTERRUPTED, EXIT_ORCH_FAILED, EXIT_USAGE, OrchError
from orchestrator.node.system.private import hold_umask

__all__ = ["main", "orch"]

# Objects between two looks for garbage: what a command imports stays, and to look through it takes a tenth of its time.
GARBAGE = 50_000


def main() -> NoReturn:
    """Run the command line and exit with the code of docs/cli.md."""
    gc.set_threshold(GARBAGE)
    hold_umask()
    try:
        code = orch.main(standalone_mode=False, prog_name="orch")
        sys.stdout.flush()
    except OrchError as error:
        say(f"orch: {error.message}")
        for line in error.hint.splitlines():
            say(f"  {line}")
        code = error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = EXIT_USAGE
    except BrokenPipeError:  # `orch logs RUN | head`: whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception as error:
        if os.environ.get("ORCH_DEBUG"):
            raise
        say(f"orch: an error in orch itself: {type(error).__name__}: {error}")
        say("  ORCH_DEBUG=1 shows where; please report it")
        code = EXIT_ORCH_FAILED
    sys.exit(code)
