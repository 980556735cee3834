"""Tickets as a machine's users lay them, and as others might: neither owner nor time can be forged."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.server import tickets
from orchestrator.node.server.request import RefusedError
from tests.patience import PATIENCE

NOBODY = 65534
RUN = "mine-abc234"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The machine's folder of everybody's temporary files, of which root's is the only one that counts."""
    if os.getuid() != 0:
        pytest.skip("a sticky folder of root's is root's to make")
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name)
        shared.chmod(0o1777)
        monkeypatch.setattr(tickets, "SHARED", (f"{name}/missing", name))
        yield shared


@pytest.fixture
def nobody(folder: Path) -> Callable[[str], None]:
    """Run Python statements as another user in the folder."""

    def run(program: str) -> None:
        argv = ["/usr/bin/env", "python3", "-I", "-S", "-c", f"import os\n{program}"]
        subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], cwd=folder, check=True, timeout=PATIENCE)

    return run


def ask(verb: str, **values: Any) -> dict[str, Any]:
    return getattr(tickets, verb)(values, b"")[0]  # type: ignore[no-any-return]


def shown() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask("look_at_queue", slots=2)["tickets"]
    return found


def test_a_ticket_is_laid_renewed_replaced_and_dropped(folder: Path) -> None:
    before = time.time_ns()
    ask("take_ticket", run_id=RUN, count=2, number=before)
    found = shown()
    assert [(each["uid"], each["user"], each["run"], each["needs"], each["number"]) for each in found] == [
        (0, "root", RUN, 2, before)
    ]
    assert before - 10**9 <= found[0]["made"] <= time.time_ns()  # the kernel's stamp may be of its last tick
    path = next(folder.iterdir())
    assert stat.S_IMODE(path.stat().st_mode) == 0o711
    was = (path / "renewed").stat().st_ctime_ns
    time.sleep(0.02)  # the kernel's own stamp, which nobody can set, has to be another
    assert ask("renew_ticket", run_id=RUN) == {"renewed": True}
    again, renewed = shown()[0], (path / "renewed").stat().st_ctime_ns
    assert (again["made"], renewed > was) == (found[0]["made"], True)  # the place stays
    assert again["age"] <= time.time() - renewed / 1e9 + 0.01
    ask("take_ticket", run_id=RUN, count=1, number=before + 1)
    assert [(each["needs"], each["number"]) for each in shown()] == [(1, before + 1)]
    assert ask("drop_ticket", run_id=RUN) == {"dropped": 1}
    assert (list(folder.iterdir()), ask("renew_ticket", run_id=RUN)) == ([], {"renewed": False})


def test_another_user_can_neither_forge_move_renew_nor_remove_one(folder: Path, nobody: Callable[[str], None]) -> None:
    ask("take_ticket", run_id=RUN, count=2, number=5)
    path, before = next(folder.iterdir()), shown()[0]
    nobody(f"""
path = {path.name!r}
inner = path + '/renewed'
for act in (lambda: os.rmdir(inner), lambda: os.rmdir(path), lambda: os.rename(path, 'x'), lambda: os.utime(inner),
            lambda: os.utime(path), lambda: os.mkdir(path + '/x'), lambda: os.link(path, 'x'),
            lambda: os.link(inner, 'x'), lambda: os.listdir(path), lambda: os.chmod(path, 0o777)):
    try:
        act()
    except OSError:
        continue
    raise SystemExit('it could be done')
name = 'orch-queue.' + 'a' * 16 + '.1.1.forged-abc234'
os.mkdir(name)
os.mkdir(name + '/renewed')
os.utime(name, (1, 1))
""")
    mine, theirs = sorted(shown(), key=lambda each: each["uid"])
    assert {**mine, "age": 0} == {**before, "age": 0}
    assert (theirs["uid"], theirs["run"]) == (NOBODY, "forged-abc234")
    assert theirs["made"] >= mine["made"]  # by the kernel's word, whatever its name and times say
    assert ask("drop_ticket", run_id="forged-abc234") == {"dropped": 0}  # it is another's


def test_links_files_and_other_things_are_none(folder: Path, nobody: Callable[[str], None]) -> None:
    ask("take_ticket", run_id=RUN, count=2, number=5)
    path = next(folder.iterdir()).name
    nobody(f"""
names = ['orch-queue.' + letter * 16 + '.1.1.odd-abc234' for letter in '0123456']
os.symlink({path!r}, names[0])
os.mkdir(names[1])
os.symlink('../' + {path!r} + '/renewed', names[1] + '/renewed')
open(names[2], 'w').close()
os.mkfifo(names[3])
os.mkdir(names[4])
os.mkdir(names[5])
open(names[5] + '/renewed', 'w').close()
os.mkdir('orch-queue.x')
os.mkdir('orch-queue.' + 'b' * 16 + '.1.1.' + chr(27) + '[2J')
""")
    assert [each["run"] for each in shown()] == [RUN]


def test_a_flood_of_another_users_hides_nobody(folder: Path, nobody: Callable[[str], None]) -> None:
    nobody("""
for number in range(500):
    name = 'orch-queue.%016x.1.%d.flood-%d' % (number, number, number)
    os.mkdir(name)
    os.mkdir(name + '/renewed')
""")
    ask("take_ticket", run_id=RUN, count=2, number=time.time_ns())
    found = shown()
    assert len(found) == tickets.MOST_TOLD + 1
    assert found[-1]["run"] == RUN


def test_where_users_share_no_folder_there_is_no_queue(folder: Path) -> None:
    folder.chmod(0o755)
    assert shown() == []
    with pytest.raises(RefusedError, match="sticky bit that root owns"):
        ask("take_ticket", run_id=RUN, count=2, number=1)
    folder.chmod(0o1777)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(RefusedError, match="sticky bit that root owns"):
        ask("take_ticket", run_id=RUN, count=2, number=1)
