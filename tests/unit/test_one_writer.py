"""Files in folders that a user names have one writer, protocol/writing.py: no other code opens a file for writing,
except in orch's own folders.

The syntax tree of every module is walked. A module that opens files for writing stands in OWN_FOLDERS, with the folder
of orch in which the files are.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import orchestrator

ROOT = Path(orchestrator.__file__).parent
# What runs on nodes writes into the workdir, training is the user's program, and protocol has the writers themselves.
ELSEWHERE = ("node/", "training/", "protocol/")
OWN_FOLDERS = {
    "the folder of a run, sweep or search": [
        "backends/agents/over_ssh.py", "backends/agents/start.py", "backends/mirror/growing.py",
        "backends/mirror/output_record.py", "backends/mirror/outputs.py", "backends/mirror/watching.py",
        "backends/replay_stage.py", "operations/export.py", "operations/submission/sweep.py", "prepare/repeat.py",
        "runs/claims.py", "runs/files/code_snapshot.py", "runs/files/laid_files.py", "runs/labels.py", "runs/outbox.py",
        "runs/searches.py", "runs/start_lock.py", "runs/store.py", "runs/sweeps.py", "supervisor/notifications.py",
        "supervisor/searching.py", "trackers/tensorboard.py", "trackers/wandb.py",
    ],
    "the state folder, with its caches": [
        "cli/commands/machines/doctor.py", "environments/packages.py", "environments/wheels.py",
        "operations/bandwidth.py", "operations/gc_files.py", "prepare/interpreter.py", "supervisor/background.py",
        "supervisor/heartbeat.py", "transport/logins.py", "web/files.py", "web/saved_views.py", "web/server.py",
    ],
    "a temporary folder of mode 0700 under a new name": [
        "operations/submission/delegate.py", "operations/submission/launch.py", "operations/tensorboard.py",
        "transport/host_keys.py",
    ],
    "a folder or file that the safe writer has opened": ["backends/mirror/fetch.py", "backends/mirror/local.py"],
}  # fmt: skip
WRITERS = {
    "append_line", "append_lines", "locked", "locked_if_free", "locked_in_place", "open_own", "overwrite_line",
    "put_in_place", "replacing", "write_atomic", "write_durably", "write_json", "Arriving", "copy_file",
}  # fmt: skip
METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to"}  # of a path
LIBRARY = re.compile(r"shutil\.(copy\w*|move)|os\.(symlink|link|rename|replace)")
FLAGS = re.compile(r"O_(WRONLY|RDWR|CREAT|APPEND|TRUNC)")
MODE = re.compile(r"[wax]|.*\+")


def writes(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    constants = [
        each.value for each in [*call.args, *(key.value for key in call.keywords)] if isinstance(each, ast.Constant)
    ]
    if last in ("open", "fdopen") and name != "os.open":
        in_memory = any(key.arg == "fileobj" for key in call.keywords)
        return not in_memory and any(
            isinstance(each, str) and len(each) <= 3 and MODE.match(each) for each in constants
        )
    if name == "os.open" or last == "open_own":
        return FLAGS.search(ast.unparse(call)) is not None and "os.devnull" not in ast.unparse(call)
    if isinstance(call.func, ast.Attribute) and last in METHODS:
        return True
    return LIBRARY.fullmatch(name) is not None or (last in WRITERS and name in (last, f"files.{last}"))


def found_in(text: str) -> list[str]:
    return [ast.unparse(each) for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call) and writes(each)]


def test_no_other_code_opens_files_for_writing_outside_of_orch_s_own_folders() -> None:
    modules = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}
    found = {name: calls for name, path in modules.items()
             if not name.startswith(ELSEWHERE) and (calls := found_in(path.read_text()))}  # fmt: skip
    listed = {name for names in OWN_FOLDERS.values() for name in names}
    others = {name: calls for name, calls in found.items() if name not in listed}
    assert others == {}, "use orchestrator/protocol/writing.py, or say in OWN_FOLDERS which folder of orch it is"
    assert listed <= set(found), "these write nothing any more"


def test_the_walk_sees_what_it_is_to_see() -> None:
    code = """
def writing(path):
    path.write_text("x"); open(path, "wb"); path.open("r+b"); os.open(path, os.O_CREAT | os.O_WRONLY)
    os.fdopen(3, mode="a")
    write_atomic(path, b""); files.append_lines(path, []); shutil.copyfile(path, path); os.replace(1, 2)
    open_own(path, os.O_RDWR)
def reading(path):
    path.read_text(); open(path, "rb"); path.open(); os.open(path, os.O_RDONLY); lines.append("w")
    open_own(path, os.O_RDONLY)
    folder.write("name", b""); os.open(os.devnull, os.O_RDWR); tarfile.open(fileobj=buffer, mode="w")
"""
    first, _, second = code.partition("def reading")
    assert len(found_in(first)) == 10
    assert found_in(f"def reading{second}") == []
