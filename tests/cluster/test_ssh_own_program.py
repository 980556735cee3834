"""Hosts that only the user's own ssh program can reach: a second factor, a password, lines of ~/.ssh/config."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, STEPS, Lab, kill, settled, weights_after
from tests.cluster.test_debug import ALONE, attach, debugging
from tests.patience import PATIENCE
from tests.testbed import sshd
from tests.testbed.layout import REPO
from tests.testbed.sites import SITES

MASTER = SITES["second-factor"].config

REACH = """
from orchestrator.backends.hosts import connections
from orchestrator.errors import BackendError
from orchestrator.transport.address import Address
pool = connections()
try:
    print(pool.session(Address("far"), "~/.orch").connection)
except BackendError as error:
    print(error.message)
pool.close()
"""


# A supervisor that makes its looks without pauses, and prints a line for each.
LOOKS = 60  # of a quarter of an hour, one each LONGEST_PAUSE
HASTY = """
import runpy
from orchestrator.backends.mirror import watching
from orchestrator.transport import logins, pool
watching.FIRST_PAUSE = watching.LONGEST_PAUSE = pool.RETRY_SECONDS = 0.001
check = logins.Logins.check
def look(self, resolved):
    print("look", flush=True)
    check(self, resolved)
logins.Logins.check = look
runpy.run_module("orchestrator.supervisor", run_name="__main__")
"""
PAGE = """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 18080), http.server.SimpleHTTPRequestHandler)
print("serves", flush=True)
server.serve_forever()
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def doctor(lab: Lab, **variables: str) -> tuple[str, str, str]:
    """(level, words, hint) of doctor's check of the connection to n1."""
    checks = lab.orch("doctor", "--profile", lab.profile(hosts=["n1"]), "--json", **variables).json
    check = next(check for check in checks if check["what"] == "ssh")
    return check["level"], check["value"], check["hint"]


def test_a_second_factor_from_submit_to_pull(lab: Lab) -> None:
    lab.control.ask_for_more("n1", *sshd.SECOND_FACTOR)
    job = lab.job("steps", STEPS, args=["60", "0.2"])
    refused = lab.orch("submit", job, "--profile", lab.profile(hosts=["n1"]))
    assert refused.code == 1
    assert (
        "n1: the login asks for a second factor, and orch never prompts; open a connection with: ssh n1" in refused.err
    )
    assert "ControlMaster auto" in refused.err
    again = lab.orch("submit", job, "--profile", lab.profile(hosts=["n1"]))
    assert "orch does not repeat a login that was refused" in again.err
    settled(lambda: len(lab.control.failed_logins("n1")) == 1, "the failed login in sshd's log")

    lab.write(".ssh/config", MASTER)
    lab.control.open_by_hand(LAPTOP, "ssh", "n1")
    assert (
        doctor(lab)[1] == "connected by your ssh program: it uses the connection that you have opened (ControlMaster)"
    )
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1"]))
    lab.until_said(run, "begins at 0")
    lab.control.output(LAPTOP, "ssh", "-O", "exit", "n1")
    settled(lambda: "open a connection with: ssh n1" in json.dumps(lab.status(run)), "the command that opens it again")
    kill(lab.supervisor())
    hasty = lab.control.start(LAPTOP, sys.executable, "-c", HASTY, PYTHONPATH=str(REPO))
    assert hasty.stdout is not None
    assert [hasty.stdout.readline() for _ in range(LOOKS)] == ["look\n"] * LOOKS
    assert len(lab.control.failed_logins("n1")) <= 2  # one without the lines in ~/.ssh/config, and one with them
    kill(lab.supervisor())
    lab.control.open_by_hand(LAPTOP, "ssh", "n1")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert weights_after(60) in lab.log(run)
    pulled = lab.orch("pull", run, "--to", "here")
    assert pulled.code == 0, pulled.err
    assert len(lab.control.failed_logins("n1")) <= 2


@pytest.mark.full(
    "tests/unit/transport/test_logins.py::"
    "test_a_command_by_ssh_is_tried_first_where_orch_s_own_connection_has_not_logged_in"
)
def test_a_debugger_a_shell_and_a_port_through_an_open_connection_that_has_little_room(lab: Lab) -> None:
    """A command that finds no room says so, and costs no failed login."""
    lab.control.ask_for_more("n1", *sshd.SECOND_FACTOR, "MaxSessions 3")
    lab.write(".ssh/config", MASTER)
    lab.control.open_by_hand(LAPTOP, "ssh", "n1")
    two = lab.profile(hosts=["n1"], nproc_per_node=2)
    with debugging(lab, lab.job("alone", ALONE), "-p", two) as (_, found):
        source = "/home/alice/alone/main.py"
        assert attach(lab, found, source, [4], ["value"]) == [["add", source, 4, "41"]]
    run = lab.submit(lab.job("page", PAGE), "-p", lab.profile(hosts=["n1"]))
    lab.until_said(run, "serves")  # so the supervisor has one of the three sessions
    assert lab.orch("shell", run, "hostname").out == "n1\n"
    port = lab.control.start(LAPTOP, *lab.argv("port", run, "18080"))
    assert port.stdout is not None
    get = f"import urllib.request as u; print(u.urlopen('http://{port.stdout.readline().strip()}/').status)"
    assert lab.control.output(LAPTOP, "/usr/bin/python3", "-c", get) == "200"
    terminal = lab.control.start(LAPTOP, "ssh", "n1", "echo there; cat")
    assert terminal.stdout is not None
    assert terminal.stdout.readline() == "there\n"
    full = (
        "n1: its open connection (ControlMaster) has no room for another session\n"
        "  close a terminal there, or ask its administrator to raise sshd's MaxSessions\n"
    )
    for words in (("shell", run, "hostname"), ("port", run, "18080"), ("submit", "page/page.yaml", "-p", "lab.yaml")):
        refused = lab.orch(*words)
        assert (refused.code, refused.err) == (1, f"orch: {full}"), refused
    assert full.partition("\n")[0] in lab.orch("stacks", run).out
    terminal.communicate()
    assert lab.orch("shell", run, "hostname").out == "n1\n"
    lab.orch("cancel", run, "--now")
    assert port.wait(PATIENCE) == 0
    assert lab.control.failed_logins("n1") == []


def configure(lab: Lab, *lines: str) -> None:
    """Her ~/.ssh/config, with these lines for `far`, another name of n1."""
    lab.write(".ssh/config", "\n  ".join(["Host far", "HostName n1", "HostKeyAlias n1", *lines]) + "\n")


def reached(lab: Lab) -> str:
    """How orch is connected to `far`, or why it is not."""
    program = lab.control.python(LAPTOP, "-c", REACH)
    assert program.code == 0, program.err
    return program.out.strip()


@pytest.mark.parametrize("name", [name for name, site in SITES.items() if site.why_program and not site.asks])
def test_lines_of_the_configuration_that_need_her_ssh_program(lab: Lab, name: str) -> None:
    """A run at each of these sites is in test_sites.py."""
    lab.control.at_site(name, "n1")
    assert doctor(lab, **SITES[name].variables) == (
        "ok", *2 * (f"connected by your ssh program: {SITES[name].why_program}",)
    )  # fmt: skip


def test_a_password(lab: Lab) -> None:
    lab.control.ask_for_more("n1", *sshd.PASSWORD)
    level, words, hint = doctor(lab)
    assert (level, words.partition(";")[0]) == ("fail", "n1: the login asks for a password, and orch never prompts")
    assert "ControlPersist" in hint
    lab.write(".ssh/config", MASTER)
    lab.control.open_by_hand(LAPTOP, "ssh", "n1")
    assert doctor(lab)[0] == "ok"


def test_a_gateway_with_a_second_factor(lab: Lab) -> None:
    lab.control.ask_for_more("n1", *sshd.SECOND_FACTOR)
    lab.control.gate("n3", "n1")
    behind = lab.profile(hosts=[{"host": "n3", "jump": "n1"}])
    refused = lab.orch("submit", lab.job("steps", STEPS, args=["5", "0"]), "--profile", behind)
    assert "n1: the login asks for a second factor" in refused.err
    lab.write(".ssh/config", MASTER)
    lab.control.open_by_hand(LAPTOP, "ssh", "n1")
    run = lab.submit("steps/steps.yaml", "--profile", behind)
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert len(lab.control.failed_logins("n1")) == 1


def test_lines_that_are_wrong_give_one_sentence_each(lab: Lab) -> None:
    """None of them leads to a prompt, and a socket that is left of a closed connection matters only if it is needed."""
    bind = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    lab.control.output(LAPTOP, "python3", "-c", bind, "/tmp/stale")
    lab.control.output(LAPTOP, "python3", "-c", bind, "/tmp/of-bob", user="bob")
    timed_out = "far: can't be reached by ssh: Connection timed out during banner exchange"
    for lines, said in (
        (["ControlPath /tmp/stale"], "orch's own connection"),
        (
            ["ControlPath /tmp/of-bob"],
            "far: /tmp/of-bob, its ControlPath in your ssh configuration, belongs to another",
        ),
        (["ProxyCommand echo hello"], "far: can't be reached by ssh: "),
        (["ProxyCommand false"], "far: can't be reached by ssh: "),
        (["ProxyCommand sleep 60", "ConnectTimeout 2"], timed_out),
        (["IdentitiesOnly yes", "IdentityFile ~/.ssh"], "far (n1:22): Permission denied (publickey)"),
    ):
        configure(lab, *lines)
        found = reached(lab)
        assert found.startswith(said), (lines, found)
        assert ("your ssh configuration: ProxyCommand" in found) == ("ProxyCommand" in lines[0])
    assert found.endswith("IdentityFile /home/alice/.ssh is a folder")
