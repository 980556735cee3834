"""Files that others write, and JSON that others send, have one reader: no other code opens or parses them.

The syntax tree of every module is walked. Code that opens something else stands in OTHERS, with the reason why what it
opens can't be in the place of a file of a run.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import orchestrator

ROOT = Path(orchestrator.__file__).parent
READER = {"protocol/reading.py", "protocol/writing.py", "protocol/json_text.py"}
OPENERS = {"open", "os.open", "io.open", "os.fdopen", "json.load", "json.loads", "linecache.getline", "fileinput.input"}
METHODS = {"read_text", "read_bytes"}  # of a path
KERNEL = ("/proc/", "/sys/", "/dev/kmsg")
KERNELS = "the kernel's files"
USERS = "a file that the user has named, or of the user's project, with the user's rights"
OWN = "orch's own program, or its own cache, which nobody else may write"
NEW = "a file that is made anew under a name that was not there"
PIPE = "a pipe or a socket of this process"
APPENDED = "orch's own log on this machine, which is only added to"
OTHERS: dict[str, dict[str, str]] = {
    "backends/slurm/submission.py": {"_submit_command": "the pickle that submitit has just written here"},
    "backends/mirror/local.py": {"_copy": "a descriptor of the safe writer"},
    "cli/__init__.py": {"open_closed_streams": "/dev/null, in the place of a closed standard stream"},
    "cli/commands/machines/doctor.py": {"_is_new": NEW},
    "cli/logs/printer.py": {"_print_bytes": "the reader of logs, which has a method of that name"},
    "environments/lock.py": {"read_lock": USERS},
    "environments/wheels.py": dict.fromkeys(("is_whole", "keep", "_have", "built"), OWN),
    "node/agent/job.py": {"run_job": "its agents' logs, which it only adds to"},
    "node/agent/launcher_process.py": {"start": "a descriptor of open_own"},
    "node/agent/replay.py": {"_in_container": NEW},
    "node/container/prepare.py": {"_make_file": "it is made if it is missing, and never read"},
    "node/debug/relay.py": {"_pipes": PIPE},
    "node/environments/folder.py": {"unused": "it is locked, and not read; without links and without waiting"},
    "node/environments/install.py": dict.fromkeys(("_build", "_verified_copy", "_show"), NEW),
    "node/launcher/flight_recorder.py": {"ask_for_dumps": "a pipe, as it checks; without links and without waiting"},
    "node/launcher/rank/checkpoint_use.py": {"_note": NEW, "_own_file": KERNELS},
    "node/launcher/rank/debugger.py": {"_start_adapter": PIPE},
    "node/launcher/rank/error_file.py": {"write_error": "a descriptor of open_own"},
    "node/launcher/rank/forked.py": {"_run_as_main": USERS},
    "node/server/code_cache.py": {"_write_entry": NEW},
    "node/server/machine.py": {"start_agent": NEW, "_start": OWN},
    "node/server/server.py": {"serve": PIPE},
    "node/server/tickets.py": {"_times": "a folder, by which nothing is read but its owner and its times"},
    "node/system/copying.py": {"copy_file": "it is copied with the user's rights, without links and without waiting"},
    "node/system/gpus/devices.py": {"devices_apart": PIPE},
    "node/system/kernel_files.py": {"read_bytes": KERNELS},
    "node/system/own_folder.py": {"__init__": "a folder, which is held open and not read"},
    "node/system/inputs.py": {"_fetch": NEW, "_open": USERS},
    "operations/bandwidth.py": {"last": OWN},
    "prepare/time_limit.py": {"_may_save": USERS},
    "protocol/checkpoints/checksum.py": {"checksum_of": "a descriptor of the safe reader or writer"},
    "protocol/files.py": {"write_atomic": NEW, "_sync": "it is synced, and not read", "sync_filesystem": "a folder"},
    "runs/files/code_snapshot.py": {"_copy": USERS},
    "runs/files/ignore_rules.py": {"_lines_of": USERS},
    "specs/documents/yaml_source.py": {"_read_text": USERS},
    "specs/launchers.py": {"_in_script": USERS},
    "specs/task_options.py": {"words_of_task": USERS},
    "supervisor/notifications.py": {"_run_command": APPENDED},
    "supervisor/background.py": {"start_supervisor": APPENDED},
    "trackers/wandb_program.py": {"main": "the supervisor's words, read without orch"},
    "transport/host_keys.py": {"_lines": USERS, "revoked_by": USERS},
    "transport/node_archive.py": dict.fromkeys(("node_archive", "submitit_archive", "_sources"), OWN),
    "transport/ssh_options.py": {"kind_of": USERS},
    "web/export.py": {"export_pages": OWN, "_as_function": OWN},
    "web/server.py": {"_log": "a descriptor of open_own"},
}


def test_no_other_code_opens_files_or_parses_json_that_others_write() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    where = []
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in READER or name.startswith("training/"):  # which is the user's program
            continue
        for function, line, words in calls_in(ast.parse(path.read_text())):
            if function in OTHERS.get(name, ()):
                found[name].add(function)
            else:
                where.append(f"{path}:{line}: {words}")
    assert not where, "read it with orchestrator/protocol/reading.py, or say in OTHERS why not:\n" + "\n".join(where)
    gone = {f"{name}: {each}" for name, functions in OTHERS.items() for each in functions if each not in found[name]}
    assert gone == set(), "these open nothing any more"


def calls_in(tree: ast.AST, function: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield (function, line, words) of each call that opens or parses, unless the kernel or the reader gives it."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.Call) and opens(node):
            yield function, node.lineno, ast.unparse(node)
        yield from calls_in(node, inside)


def opens(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if attribute == "open" and name not in OPENERS:  # of a path, if its argument is a mode
        return bool(call.args) and isinstance(call.args[0], ast.Constant)
    if attribute in METHODS:
        return True
    if name not in OPENERS:
        return False
    first = call.args[0]
    if isinstance(first, ast.Call) and ast.unparse(first.func) in ("open_own", "descriptor_of"):
        return False
    text = ast.unparse(first).lstrip("f").strip("'\"")
    return not text.startswith(KERNEL) and text != "os.devnull"


def test_the_walk_sees_what_it_is_to_see() -> None:
    code = """
import json, os
class A:
    def one(self): return open(self.path, "rb")
async def two(): return json.loads(await x())
def three(path): return path.read_text(), os.open(path, 0), path.open("rb")
def fine(pid): return open(f"/proc/{pid}/stat"), open(open_own(pid), "rb"), open(os.devnull), lead.open()
"""
    found = [(function, words.partition("(")[0]) for function, _, words in calls_in(ast.parse(code))]
    assert found == [
        ("one", "open"), ("two", "json.loads"),
        ("three", "path.read_text"), ("three", "os.open"), ("three", "path.open"),
    ]  # fmt: skip
