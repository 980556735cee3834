"""Machines that can't take part: named before anything starts, each with what to do; and odd ones that can."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, STEPS, Lab
from tests.terminal import terminal
from tests.testbed.machine import ENVIRONMENT

HELLO = "print('hello')\n"


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def refused(lab: Lab, *args: str, **fields: object) -> str:
    """What submit says; nothing has been started anywhere."""
    done = lab.orch("submit", lab.job("hello", HELLO), "--profile", lab.profile(**fields), *args)  # type: ignore[arg-type]
    assert done.code == 1, done.err
    for host in ("n1", "n2", "n3"):
        assert lab.agents(host) == []
        assert not list(lab.control.file(host, "/home/alice").glob(".orch/runs/*/nodes"))
    assert lab.orch("status", "hello").code == 102
    return done.err


def test_hosts_that_are_down_are_all_named_and_nothing_starts_on_the_others(lab: Lab) -> None:
    lab.control.crash("n2")
    lab.control.cut("n3")
    said = refused(lab)
    assert "n2 (10.90.0.12:22" in said or "n2 (n2:22" in said
    assert "n3 (" in said
    assert said.count("can't be reached: ") == 2
    assert re.search(r"n3 .*: (No route to host|Connection timed out after 5 s)", said)
    assert "n1 (" not in said


def test_what_keeps_a_host_away_is_told_in_the_system_s_own_words(lab: Lab) -> None:
    lab.control.gate("n3", "n2")
    named = lab.profile(hosts=["n1", {"host": "n2", "port": 2299}, "n3", "10.90.0.200"])
    argv = lab.control.argv(LAPTOP, *lab.argv("doctor", "--profile", named), TERM="dumb")
    with terminal(argv, ENVIRONMENT) as screen:
        assert screen.code() == 1
    said = " ".join(screen.text.split())
    # Others may be slow too; 10.90.0.200 is awaited for 3 s, of which a busy machine may see none.
    assert re.search(r"waiting for an answer from ((10\.90\.0\.200|n\d), )*n(3|\[1-3\])", said)
    assert "n2 (n2:2299): can't be reached: Connection refused" in said
    assert "n3 (n3:22): can't be reached: Connection timed out after 5 s" in said
    assert "10.90.0.200 (10.90.0.200:22): can't be reached: No route to host" in said
    assert said.count("can't be reached") == 3


def test_a_changed_host_key_is_always_refused(lab: Lab) -> None:
    lab.control.change_key("n2")
    lab.write(".ssh/config", "Host *\n  StrictHostKeyChecking no\n")
    said = refused(lab)
    assert "host key verification failed: its key has changed" in said
    assert "ssh-keygen -R" in said


def test_an_unknown_host_key_is_refused_with_its_fingerprint(lab: Lab) -> None:
    known = lab.home / ".ssh/known_hosts"
    kept = known.read_text()
    known.write_text("".join(line for line in kept.splitlines(keepends=True) if "n3" not in line))
    said = refused(lab)
    scan = "ssh-keyscan -t ed25519 localhost 2>/dev/null | ssh-keygen -lf -"
    real = lab.control.output("n3", "sh", "-c", scan).split()[1]
    assert f"its host key is not in known_hosts (ssh-ed25519 {real})" in said
    assert "ssh-keyscan -t ed25519 n3" in said


def test_no_key_that_the_host_takes(lab: Lab) -> None:
    said = refused(lab, user="bob")
    assert "Permission denied (publickey) for user bob" in said
    assert "ssh-add" in said


def test_an_interpreter_that_is_not_there(lab: Lab) -> None:
    assert "n1: its training interpreter /opt/none/python can't be started" in refused(lab, python="/opt/none/python")


def test_a_workdir_that_can_not_be_written(lab: Lab) -> None:
    said = refused(lab, workdir="/usr/lib/orch")
    assert "n1: /usr/lib/orch can't be used" in said
    assert "set workdir in the profile" in said


def test_a_folder_that_is_not_shared_though_the_profile_says_so(lab: Lab) -> None:
    said = refused(lab, shared=True)
    assert "n2, n3: ~/.orch is not the folder that n1 has there" in said
    assert "set shared: false" in said
    for host in ("n1", "n2", "n3"):  # what was sent before it was known
        assert not list(lab.control.file(host, "/home/alice").glob(".orch/runs/*"))
    run = lab.submit(
        lab.job("steps", STEPS, args=["6", "0"]), "--profile", lab.profile(shared=True, workdir="/shared/orch")
    )
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert "weights" in lab.log(run)
    assert not list(lab.control.file("n1", "/shared/orch/runs").iterdir())


def test_a_host_without_python(lab: Lab) -> None:
    # A login shell whose PATH has nothing in it stands for a machine without python3.
    lab.control.sshd("n2", "SetEnv PATH=/nonexistent")
    said = refused(lab)
    assert "n2: it has no python3" in said


def test_a_python3_that_does_not_work(lab: Lab) -> None:
    for number, (host, program) in enumerate({"n2": "exit 1", "n3": "echo no libc >&2; exit 2"}.items()):
        file = lab.control.file(host, f"/home/alice/broken{number}/python3")
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{program}\n")
        file.chmod(0o755)
        lab.control.sshd(host, f"SetEnv PATH=/home/alice/broken{number}:/usr/bin:/bin")
    said = refused(lab)
    assert "n2: its python3 does not start orch's server: it ended with code 1 without a word" in said
    assert "n3: its python3 does not start orch's server: it ended with code 2 and printed: no libc" in said
    page = lab.orch("doctor", "--profile", lab.profile()).out
    assert "fail  node 1 (n2), python3: " in page


def test_what_no_machine_has_is_said_of_all_of_them(lab: Lab) -> None:
    """A module, an interface and a setup line, each before or as the ranks start; the shell's words are here."""
    job = lab.job("lacks", "import no_such_module\n")
    why = said_of(lab, job)
    assert "the module no_such_module is missing on all 3 machines (n1, n2, n3); python there: /" in why
    assert "orch doctor -p lab" in why
    why = said_of(lab, job, interface="eth9")
    assert "node 0 (n1), node 1 (n2), node 2 (n3): it has no network interface eth9" in why
    assert (
        "fail  node 2 (n3), master: it has no network interface eth9"
        in lab.orch("doctor", "--profile", lab.profile(interface="eth9")).out
    )
    why = said_of(lab, job, setup=["true", "module load cuda"])
    assert "setup line 2 failed: module load cuda: module: command not found" in why
    assert "module: command not found" in lab.orch("logs", "last").out


def said_of(lab: Lab, job: str, **fields: Any) -> str:
    """What `orch why` says of such a run, on one line."""
    run = lab.submit(job, "--profile", lab.profile(**fields))
    assert lab.wait(run).code == 100
    return " ".join(lab.orch("why", run).out.split())


def test_a_name_that_does_not_exist(lab: Lab) -> None:
    assert "nowhere: no such host" in refused(lab, hosts=["n1", "nowhere"])


def test_gpus_that_are_not_there(lab: Lab) -> None:
    assert "n1: it has 0 GPUs for 1 rank with nccl" in refused(lab, backend="nccl")
    said = refused(lab, "--set", "job.resources={gpus: 2}")
    assert "n3: it has 0 GPUs, and the job asks for 2" in said
    assert "see resources.gpus of the job" in said


def test_a_banner_a_noisy_bashrc_and_two_sessions_are_no_hindrance(lab: Lab) -> None:
    banner = lab.control.file("n1", "/srv/banner")
    banner.write_text("Welcome!\nOnly for research.\n")
    lab.control.sshd("n1", "Banner /srv/banner", "MaxSessions 2")
    for host in ("n1", "n2"):
        lab.control.file(host, "/home/alice/.bashrc").write_text("echo this is my bashrc; echo and this >&2\n")
    run = lab.submit(lab.job("steps", STEPS, args=["10", "0"]), "--profile", lab.profile())
    assert lab.wait(run).code == 0
    assert "weights" in lab.log(run)


@pytest.mark.full(
    "tests/cluster/test_ssh_bytes.py::test_a_large_checkpoint_comes_whole_and_goes_on_to_another_host",
)
def test_a_host_behind_a_gateway(lab: Lab) -> None:
    lab.control.gate("n3", "n1")
    hosts = ["n1", "n2", {"host": "n3", "jump": "n1"}]
    run = lab.submit(lab.job("hello", HELLO), "--profile", lab.profile(hosts=hosts))
    assert lab.wait(run).code == 0
    assert "can't be reached" in lab.orch("doctor", "--profile", lab.profile("straight", hosts=["n3"])).out


def test_doctor_says_what_is_wrong_on_each_node(lab: Lab) -> None:
    profile = lab.profile(nproc_per_node=99)
    well = lab.orch("doctor", "--profile", profile)
    assert (well.code, well.out.splitlines()[0].split()[:3]) == (0, ["NODE", "HOST", "SSH"])
    assert "more ranks than cores" in well.out
    lab.control.crash("n3")
    hosts = ["n1", {"host": "n2", "python": "/usr/bin/python3"}, "n3"]
    found = lab.orch("doctor", "--profile", lab.profile("sick", hosts=hosts), "--json")
    assert found.code == 1
    failed = {(check["host"], check["what"]): check for check in found.json if check["level"] == "fail"}
    assert set(failed) == {("n2", "training"), ("n3", "ssh")}
    assert "torch missing" in failed["n2", "training"]["value"]
    assert all(check["hint"] for check in failed.values())
    assert {check["level"] for check in found.json if check["host"] == "n3" and check["what"] != "ssh"} == {"-"}


@pytest.mark.full(
    "tests/cluster/test_ssh_refusals.py::test_doctor_says_what_is_wrong_on_each_node",
)
def test_doctor_names_a_way_to_the_master_that_is_closed(lab: Lab) -> None:
    rule = ("INPUT", "-i", "eth0", "-p", "tcp", "--dport", "20000:20100", "-j", "DROP")
    lab.control.output("n1", "iptables", "-A", *rule, user="root")
    lab.control.undo.callback(lab.control.output, "n1", "iptables", "-D", *rule, user="root")
    found = lab.orch("doctor", "--profile", lab.profile(ports="20000-20100"), "--json").json
    verdicts = {check["host"]: check["level"] for check in found if check["what"] == "master"}
    assert verdicts == {"n1": "ok", "n2": "fail", "n3": "fail"}
    job = lab.job("hello", HELLO, limits={"join": 10}, retry={"infra": 0})
    run = lab.submit(job, "--profile", lab.profile(ports="20000-20100"))
    assert lab.wait(run).code == 100
    said = lab.orch("why", run).out
    assert "can't reach node 0 (n1)" in said or "did not join" in said
