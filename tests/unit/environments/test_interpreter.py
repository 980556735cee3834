"""The tags of a node's interpreter are those that it would give itself."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from packaging import tags

from orchestrator.environments.interpreter import Interpreter
from orchestrator.node.environments.interpreters import ask


@pytest.fixture(scope="module")
def here() -> Interpreter:
    return Interpreter.of(ask(sys.executable))


def test_this_interpreter_gets_the_tags_that_it_has(here: Interpreter) -> None:
    assert set(here.tags()) == set(tags.sys_tags())


def test_a_venv_s_interpreter_is_the_one_below_it(here: Interpreter) -> None:
    assert here.base.startswith(f"{sys.base_prefix}/")


PLATFORMS = {
    ("linux-aarch64", "glibc 2.31", "manylinux_2_31_aarch64"): True,
    ("linux-aarch64", "glibc 2.31", "manylinux2014_aarch64"): True,
    ("linux-aarch64", "glibc 2.31", "manylinux_2_16_aarch64"): False,
    ("linux-aarch64", "glibc 2.31", "manylinux_2_34_aarch64"): False,
    ("linux-x86_64", "glibc 2.17", "manylinux1_x86_64"): True,
    ("linux-x86_64", "glibc 2.17", "manylinux_2_28_x86_64"): False,
    ("linux-x86_64", "musl 1.2.4", "musllinux_1_1_x86_64"): True,
    ("linux-x86_64", "musl 1.2.4", "manylinux_2_17_x86_64"): False,
    ("linux-x86_64", "", "linux_x86_64"): True,
}


@pytest.mark.parametrize(("platform", "libc", "tag"), PLATFORMS)
def test_other_machines_take_the_wheels_of_their_own_libc(
    here: Interpreter, platform: str, libc: str, tag: str
) -> None:
    other = replace(here, platform=platform, libc=libc, version="3.12.1")
    assert (tags.Tag("cp312", "cp312", tag) in other.tags()) is PLATFORMS[platform, libc, tag]


def test_a_free_threaded_interpreter_takes_no_other_s_wheels(here: Interpreter) -> None:
    names = {str(tag) for tag in replace(here, version="3.13.0", free_threaded=True).tags()}
    assert ("cp313-cp313t-linux_x86_64" in names, "cp313-cp313-linux_x86_64" in names) == (True, False)


@pytest.mark.parametrize(
    "odd", [{"version": "3"}, {"version": "3.11.x"}, {"version": "3.11.2\n"}, {"markers": {"os_name": "posix"}}]
)
def test_what_a_node_can_not_mean_is_no_interpreter(odd: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not a version of Python"):
        Interpreter.of({**ask(sys.executable), **odd})


def test_a_libc_of_any_number_costs_nothing(here: Interpreter) -> None:
    assert len(replace(here, libc="glibc 2.999999999").tags()) < 200


def test_a_new_kernel_is_not_another_interpreter_and_another_libc_is(here: Interpreter) -> None:
    assert replace(here, markers={**here.markers, "platform_release": "99"}).key == here.key
    assert replace(here, libc="glibc 2.5").key != here.key
