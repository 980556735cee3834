"""Bob against alice, on a machine that both may use: each of his attacks fails, and what is refused is named."""

from __future__ import annotations

import hashlib
import json
import stat

import pytest

from orchestrator.transport.node_archive import node_archive
from tests.cluster.control import Control
from tests.cluster.lab import HOLD, Lab

PROOF = "/scratch/proof"
EVIL = f"open({PROOF!r}, 'w').write('bob was here')\n"
HONEST = "import os\nprint('honest', open(os.environ.get('ORCH_INPUT_DATA', '/dev/null')).read())\n"
# The names of three places, held for as long as its input is open.
SQUAT = """
import socket, sys
held = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for number, each in enumerate(held):
    each.bind(f"\\0orch-lease/slot-{number}")
print("held", flush=True)
sys.stdin.read()
"""

LISTEN = """
import socket, sys
server = socket.create_server(("::1", int(sys.argv[1])), family=socket.AF_INET6)
print("listening", flush=True)
sys.stdin.read()
"""
# Prints the status of a request: for the metrics if there is a token, else for the page.
ASK = """
import http.client, sys, time
port, host, token = sys.argv[1:4]
while True:
    try:
        asking = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        path = "/metrics" if token else "/enter"
        asking.request("GET", path, headers={"Host": f"{host}:{port}", "Authorization": f"Bearer {token}"})
        print(asking.getresponse().status)
        break
    except ConnectionRefusedError:  # the tunnel is not there yet
        time.sleep(0.1)
    except OSError as error:
        print(type(error).__name__)
        break
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def as_bob(lab: Lab, script: str, host: str = "n1") -> str:
    return lab.control.output(host, "sh", "-euc", script, user="bob")


def plant(lab: Lab, path: str, content: str) -> None:
    """Put something among alice's files on n1, as if she had let others write there once, or a disk had gone wrong."""
    target = lab.control.file("n1", path)
    assert target.exists()
    target.unlink()
    target.write_text(content)


def nothing_was_run(lab: Lab) -> bool:
    return not lab.control.file("n1", PROOF).exists()


def archive_name() -> str:
    return f"node-{hashlib.sha256(node_archive()).hexdigest()[:16]}.pyz"


def refusal(lab: Lab, **fields: object) -> str:
    """What alice is told at a submit that starts nothing."""
    job = lab.job("honest", HONEST)
    profile = lab.profile(hosts=["n1"], **fields)  # type: ignore[arg-type]
    done = lab.orch("submit", job, "--profile", profile, "--no-wait")
    assert done.code == 1, done.err
    assert lab.agents("n1") == []
    return done.err


def test_nothing_of_a_live_run_on_a_node_can_be_read_by_others(lab: Lab) -> None:
    work = "/scratch/of-alice"
    run = lab.submit(lab.job("hold", HOLD), "--profile", lab.profile(hosts=["n1"], workdir=work, slots=2))
    lab.until_said(run, "holding")
    folder = lab.control.file("n1", work)
    found = {str(path.relative_to(folder)): path.lstat() for path in [folder, *folder.rglob("*")]}
    assert len(found) > 10
    assert {name: oct(info.st_mode) for name, info in found.items() if stat.S_IMODE(info.st_mode) & 0o077} == {}
    assert {info.st_uid for info in found.values()} == {48001}
    seen = lab.control.run("n1", "sh", "-c", f"find {work}; cat {work}/runs/{run}/nodes/0/events.jsonl", user="bob")
    assert seen.out == f"{work}\n"
    assert "Permission denied" in seen.err
    assert lab.orch("cancel", run, "--now").code == 0


def test_a_server_that_bob_has_planted_is_not_run(lab: Lab) -> None:
    as_bob(lab, f"umask 0; mkdir -p /scratch/orch/cache; cat >/scratch/orch/cache/{archive_name()} <<'END'\n{EVIL}END")
    said = refusal(lab, workdir="/scratch/orch")
    assert "n1: /scratch/orch belongs to bob: files that orch sends there would not be safe" in said
    assert nothing_was_run(lab)


def test_a_folder_that_bob_can_exchange_is_refused_unless_he_is_trusted(lab: Lab) -> None:
    lab.control.output("n1", "install", "-d", "-m", "0777", "/srv/lab", user="root")
    try:
        said = refusal(lab, workdir="/srv/lab/alice")
        assert "n1: /srv/lab may be written by others (mode 0777), who may put another folder in the place of" in said
        assert "shared_parent: true" in said
        trusting = lab.profile("trusting", hosts=["n1"], workdir="/srv/lab/alice", shared_parent=True)
        assert lab.wait(lab.submit(lab.job("honest", HONEST), "--profile", trusting)).code == 0
        checks = lab.orch("doctor", "--profile", trusting, "--json").json
        assert [each["value"].partition("; ")[2] for each in checks if each["what"] == "workdir"] == [
            "who may write above it is trusted: shared_parent"
        ]
    finally:
        lab.control.output("n1", "rm", "-rf", "/srv/lab", user="root")


def test_what_is_not_what_its_name_says_is_sent_or_fetched_anew(lab: Lab) -> None:
    data, job = "of the job", {"inputs": [{"name": "DATA", "source": "/srv/data"}]}
    lab.control.file("n1", "/srv/data").write_text(data)
    digest = hashlib.sha256(data.encode()).hexdigest()
    job["inputs"][0]["sha256"] = digest
    profile, path = lab.profile(hosts=["n1"]), lab.job("honest", HONEST, **job)
    assert lab.wait(lab.submit(path, "--profile", profile)).code == 0
    code = hashlib.sha256(HONEST.encode()).hexdigest()
    planted = {f"cache/{archive_name()}": EVIL, f"cache/code/{code}": EVIL, f"inputs/{digest}": "of bob"}
    for name, content in planted.items():
        plant(lab, f"/home/alice/.orch/{name}", content)
    run = lab.submit(path, "--profile", profile)
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert lab.log(run) == f"honest {data}\n"
    assert nothing_was_run(lab)


def test_places_that_bob_holds_for_nothing_are_his_by_name_and_no_file_of_alices_is_touched(lab: Lab) -> None:
    keys = lab.control.file("n1", "/home/alice/.ssh/authorized_keys")
    before = keys.read_bytes()
    as_bob(lab, "mkdir -m 755 /tmp/orch-leases; ln -s /home/alice/.ssh/authorized_keys /tmp/orch-leases/slot-0")
    bob = lab.control.start("n1", "/usr/bin/python3", "-c", SQUAT, user="bob")
    assert bob.stdout is not None
    assert bob.stdout.readline() == "held\n"
    said = refusal(lab, slots=3)
    assert "n1: none of the 3 slots is free, 1 is needed: slot-0, slot-1, slot-2 held by user bob (uid 48002)" in said
    assert "who names no run" in said
    assert lab.orch("nodes", "--profile", "lab.yaml").out.count("bob: no run") == 3
    job = lab.job("honest", HONEST)
    without = lab.submit(job, "--profile", lab.profile("without", hosts=["n1"], slots=3, leases=False))
    assert lab.wait(without).code == 0
    bob.communicate()
    assert lab.wait(lab.submit(job, "--profile", "lab.yaml")).code == 0
    assert keys.read_bytes() == before


def test_a_shell_asks_for_a_known_host_key_whatever_the_configuration_says(lab: Lab) -> None:
    run = lab.submit(lab.job("honest", HONEST), "--profile", lab.profile(hosts=["n1"]))
    assert lab.wait(run).code == 0
    lab.write(".ssh/config", "Host *\n  StrictHostKeyChecking no\n")
    assert lab.orch("shell", run, "echo", "in").out == "in\n"
    lab.control.change_key("n1")
    known = lab.home / ".ssh/known_hosts"
    kept = known.read_text()
    for text in (kept, ""):  # another key than the one that is known; none is known
        known.write_text(text)
        done = lab.orch("shell", run, "echo", "in")
        assert (done.code, done.out) == (1, "")
        assert "Host key verification failed" in done.err


def test_the_page_takes_alices_connections_also_through_a_tunnel_and_names_bob_once(lab: Lab) -> None:
    def ask(host: str, user: str, port: int, name: str, token: str = "") -> str:
        return lab.control.output(host, "python3", "-c", ASK, str(port), name, token, user=user)

    bob = lab.control.start("n1", "python3", "-c", LISTEN, "8700", user="bob")
    assert bob.stdout is not None
    assert bob.stdout.readline() == "listening\n"
    taken = lab.control.orch("ui", "--no-open", "--port", "8700", host="n1")
    assert taken.code == 2
    assert "port 8700 of ::1: Address already in use: bob (uid 48002) listens there" in taken.err
    done = lab.control.orch("ui", "--detach", "--no-open", "--metrics-port", "8701", host="n1")
    assert done.code == 0, done.err
    try:
        folder = lab.control.file("n1", "/home/alice/.local/state/orch/ui")
        server, token = json.loads((folder / "server.json").read_text()), (folder / "metrics_token").read_text().strip()
        port, name = server["port"], server["name"]
        assert ask("n1", "alice", port, name) == "200"
        assert ask("n1", "alice", port, "127.0.0.1") == "421"
        for _ in range(3):
            assert ask("n1", "bob", port, name) in ("ConnectionResetError", "RemoteDisconnected", "BrokenPipeError")
        assert ask("n1", "bob", 8701, "127.0.0.1", token) == "200"
        assert ask("n1", "bob", 8701, "127.0.0.1", "guessed") == "401"
        forward = ("-o", "ExitOnForwardFailure=yes", "-L", f"9000:127.0.0.1:{port}", "n1")
        lab.control.start("ctl", "ssh", "-N", *forward)
        assert ask("ctl", "alice", 9000, name) == "200"
        assert (folder / "server.log").read_text().splitlines() == [
            "refused a connection of user bob (uid 48002)",
            "/metrics was asked for without its token by user bob (uid 48002)",
        ]
    finally:
        assert lab.control.orch("ui", "--stop", host="n1").code == 0
