"""What enters a container at a terminal, or without one."""

from __future__ import annotations

import pytest

from orchestrator.node.container.argv import replaying


@pytest.mark.parametrize(("runtime", "has_tty"), [("docker", True), ("podman", True), ("apptainer", False)])
def test_a_replay_enters_a_container_as_a_launcher_does(runtime: str, has_tty: bool) -> None:
    start = [runtime, "run", "--rm", "--interactive", "IMAGE", "/r/node.pyz", "launcher"]
    words = replaying(start, "/r/inside.json", terminal=True)
    assert words[-3:] == ["/r/node.pyz", "replay", "/r/inside.json"]
    assert ("--tty" in words) is has_tty
    assert replaying(start, "/r/inside.json", terminal=False) == [*start[:-1], "replay", "/r/inside.json"]
