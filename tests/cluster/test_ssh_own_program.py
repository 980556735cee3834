"""Hosts that only the user's own ssh program can reach: a second factor, a password, lines of ~/.ssh/config."""

from __future__ import annotations

import json

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, STEPS, Lab, settled, weights_after
from tests.testbed import sshd

MASTER = "Host n1\n  ControlMaster auto\n  ControlPath ~/.ssh/cm-%C\n  ControlPersist yes\n"

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


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def doctor(lab: Lab, host: str = "n1") -> tuple[str, str, str]:
    """(level, words, hint) of doctor's check of the connection."""
    checks = lab.orch("doctor", "--profile", lab.profile(hosts=[host]), "--json").json
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
    lab.control.open_by_hand(LAPTOP, "ssh", "n1")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert weights_after(60) in lab.log(run)
    pulled = lab.orch("pull", run, "--to", "here")
    assert pulled.code == 0, pulled.err
    assert len(lab.control.failed_logins("n1")) <= 2


def configure(lab: Lab, *lines: str) -> None:
    """Her ~/.ssh/config, with these lines for `far`, another name of n1."""
    lab.write(".ssh/config", "\n  ".join(["Host far", "HostName n1", "HostKeyAlias n1", *lines]) + "\n")


def reached(lab: Lab, **variables: str) -> str:
    """How orch is connected to `far`, or why it is not."""
    program = lab.control.python(LAPTOP, "-c", REACH, **variables)
    assert program.code == 0, program.err
    return program.out.strip()


def agent(lab: Lab, socket: str) -> None:
    """An ssh-agent of hers with her key, which is then on no disk; its public key is `id.pub`."""
    lab.control.start(LAPTOP, "ssh-agent", "-D", "-a", socket)
    settled(lambda: lab.control.file(LAPTOP, socket).is_socket(), "the agent")
    lab.control.output(LAPTOP, "ssh-add", "-q", ".ssh/id_ed25519", SSH_AUTH_SOCK=socket)
    lab.control.output(LAPTOP, "sh", "-c", "rm .ssh/id_ed25519; mv .ssh/id_ed25519.pub id.pub")


def test_a_proxycommand(lab: Lab) -> None:
    configure(lab, "ProxyCommand ssh -W %h:%p n2")
    assert doctor(lab, "far") == ("ok", "connected by your ssh program: ProxyCommand", "")
    run = lab.submit(lab.job("steps", STEPS, args=["5", "0"]), "--profile", lab.profile(hosts=["far"]))
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert "rank 0" in lab.control.output(LAPTOP, "cat", f".local/state/orch/runs/{run}/nodes/0/attempt_0/rank_0.log")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["IdentitiesOnly yes", "IdentityFile ~/id"], "IdentitiesOnly"),
        (["IdentityFile ~/id.pub"], "IdentityFile /home/alice/id.pub is a public key"),
        (["IdentityAgent /home/alice/agent"], "IdentityAgent"),
    ],
)
def test_keys_of_an_agent(lab: Lab, lines: list[str], why: str) -> None:
    agent(lab, "/home/alice/agent")
    configure(lab, *lines)
    variables = {} if why == "IdentityAgent" else {"SSH_AUTH_SOCK": "/home/alice/agent"}
    assert reached(lab, **variables) == f"your ssh program: {why}"


def test_a_certificate_of_the_user(lab: Lab) -> None:
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f"]
    for name in ("ca", "other"):
        lab.control.output(LAPTOP, *keygen, name)
    lab.control.output(LAPTOP, "ssh-keygen", "-q", "-s", "ca", "-I", "alice", "-n", "alice", "other.pub")
    lab.control.output(LAPTOP, "mv", "other-cert.pub", "signed.pub")
    lab.control.file("n1", "/srv/ca.pub").write_text((lab.home / "ca.pub").read_text())
    lab.control.sshd("n1", "TrustedUserCAKeys /srv/ca.pub", "AuthorizedKeysFile none")
    configure(lab, "IdentityFile ~/other", "CertificateFile ~/signed.pub")
    assert reached(lab) == "your ssh program: CertificateFile"


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
