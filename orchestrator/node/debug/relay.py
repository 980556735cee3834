"""The program `python3 node.pyz relay RUN_DIR NODE BOUNDARY TARGET`: forwards streams to a port or a rank of this node.

The streams are multiplexed over stdin and stdout. The line BOUNDARY marks where they begin, because a login shell may
print text first. TARGET is `port:8888`, or `rank:3` for the debugger that waits in a rank.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any

from orchestrator.node.debug.streams import Streams
from orchestrator.node.system.abstract_sockets import owned_names, owner_of
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import debugger_file, newest_attempt, node_folder
from orchestrator.protocol.reading import MOST_WORD, opened

POLL_SECONDS = 0.1  # files on a network file system send no events


def relay(run_dir: str, node_rank: str, boundary: str, target: str) -> int:
    """Forward streams until stdin ends. No further check of the user is needed, because the other end has logged in
    over SSH as this user.
    """
    folder = node_folder(os.path.expanduser(run_dir), int(node_rank))
    asyncio.run(_serve(folder, boundary, target))
    return 0


async def _serve(folder: str, boundary: str, target: str) -> None:
    kind, _, number = target.partition(":")
    out = os.dup(1)
    os.dup2(2, 1)
    reader, writer = await _pipes(0, out)
    facts = {}
    if kind == "rank":
        waiting = asyncio.ensure_future(_until_announced(folder, int(number)))
        gone = asyncio.ensure_future(reader.read(1))  # nothing is sent before the boundary
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            return
        gone.cancel()
        await asyncio.wait({gone})
        facts = {"folder": waiting.result()["folder"]}
        if waiting.result()["socket"] not in {each.name for each in owned_names()}:
            print("the rank has ended, or its container is in another network than its node", file=sys.stderr)
            return
    writer.write(f"{boundary} {json.dumps(facts)}\n".encode())
    await Streams(reader, writer, lambda: _dial(folder, kind, int(number))).serve()


async def _pipes(source: int, sink: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(sink, "wb", 0))
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def _dial(folder: str, kind: str, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if kind == "rank":
        return await asyncio.open_connection(sock=_debugger(folder, number))
    try:
        return await asyncio.open_connection("127.0.0.1", number)
    except OSError:
        return await asyncio.open_connection("::1", number)


async def _until_announced(folder: str, rank: int) -> dict[str, Any]:
    while (found := _announced(folder, rank)) is None:
        await asyncio.sleep(POLL_SECONDS)  # a network file system may send no events
    return found


def _announced(folder: str, rank: int) -> dict[str, Any] | None:
    """Return the socket name and the folder in the file that announces a rank's debugger, and the file's owner.

    Return None if the file does not exist yet.
    """
    path = debugger_file(newest_attempt(folder), rank)
    try:
        with opened(path, os.path.dirname(os.path.dirname(folder))) as file:  # RUN/nodes/0
            found = parse_json(file.read(MOST_WORD))
            return {
                "socket": str(found["socket"]),
                "folder": str(found["folder"]),
                "owner": os.fstat(file.fileno()).st_uid,
            }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _debugger(folder: str, rank: int) -> socket.socket:
    """Return a connection to the debugger that waits in a rank.

    Raises OSError if the debugger has ended, or if another user has taken its socket's name.
    """
    found = _announced(folder, rank)
    if found is None:
        raise OSError("no debugger is listening in the rank")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"\0{found['socket']}")
        if owner_of(connection) != found["owner"]:
            raise OSError("another user has taken the name of the debugger's socket")
    except OSError:
        connection.close()
        raise
    connection.setblocking(False)
    return connection
