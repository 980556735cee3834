"""What brings a command to a node, and into a container, at a terminal or without one."""

import shlex

import pytest

from orchestrator.address import Address
from orchestrator.backends.terminal import in_allocation, over_ssh
from orchestrator.node.containers import replaying

ODD = ["sh", "-c", 'echo "$1"', "it's; rm -rf ~", "a b"]


def test_over_ssh_words_stay_words_and_only_what_the_profile_says_is_said() -> None:
    plain = over_ssh(Address("n1"), ODD, terminal=True)
    assert plain[:4] == ["ssh", "-t", "--", "n1"]
    assert shlex.split(plain[4]) == ODD
    whole = over_ssh(Address("-oProxyCommand=x", "me", 2222, "/k", "gate"), ["true"], terminal=False)
    assert whole == ["ssh", "-T", "-l", "me", "-p", "2222", "-i", "/k", "-J", "gate", "--", "-oProxyCommand=x", "true"]


def test_in_slurm_it_is_a_step_beside_the_agents_on_that_node() -> None:
    assert in_allocation("17", 2, ODD, terminal=True) == [
        *("srun", "--jobid=17", "--overlap", "--nodes=1", "--ntasks=1", "--relative=2", "--mem=0", "--pty", *ODD)
    ]
    assert "--pty" not in in_allocation("17", 0, ["true"], terminal=False)


@pytest.mark.parametrize(("runtime", "has_tty"), [("docker", True), ("podman", True), ("apptainer", False)])
def test_a_replay_enters_a_container_as_a_launcher_does(runtime: str, has_tty: bool) -> None:
    start = [runtime, "run", "--rm", "--interactive", "IMAGE", "/r/node.pyz", "launcher"]
    words = replaying(start, "/r/inside.json", terminal=True)
    assert words[-3:] == ["/r/node.pyz", "replay", "/r/inside.json"]
    assert ("--tty" in words) is has_tty
    assert replaying(start, "/r/inside.json", terminal=False) == [*start[:-1], "replay", "/r/inside.json"]
