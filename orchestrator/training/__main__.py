"""The program `python -m orchestrator.training`. It installs signal handlers before the slow imports, then trains."""

import sys

from orchestrator.training.distributed import stop
from orchestrator.training.errors import EXIT_NO_RETRY, EXIT_USAGE, CheckpointError, DivergedError, UserError
from orchestrator.training.options import parse, read_places


def main() -> int:
    """Run the training that the command line describes.

    Return the exit code: 0 for success, 2 for a user's error, 93 if the loss diverged, 95 after a stop signal.
    """
    stop.install()
    try:
        options = parse()
        places = read_places()
        from orchestrator.training.train import train

        return train(options, places)
    except (UserError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_USAGE
    except DivergedError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_NO_RETRY


if __name__ == "__main__":
    sys.exit(main())
