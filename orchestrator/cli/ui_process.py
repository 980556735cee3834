"""The background process of `orch ui --detach`, which reads its settings from stdin."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from orchestrator.cli.render.runs import note
from orchestrator.errors import OrchError
from orchestrator.node.system.private import hold_umask
from orchestrator.protocol.json_text import parse_json
from orchestrator.web.server import BoundedLog, Detached, serve


def main() -> int:
    """Serve the page until a signal ends this process. Write `ready` to stdout when the server accepts connections."""
    hold_umask()
    told = Detached(**parse_json(sys.stdin.read()))
    logging.getLogger().addHandler(BoundedLog())

    def ready(*_: object) -> None:
        os.write(1, b"ready\n")
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, 0)
        os.dup2(devnull, 1)
        os.close(devnull)

    try:
        serve(Path(told.root), note, logging.getLogger("orch").warning, told.ports(), ready)
    except OrchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
