"""Entering a runtime: nothing in front of the launcher, or a refusal that says what to do instead."""

from __future__ import annotations

import pytest

from orchestrator.errors import UsageError
from orchestrator.profile import PROFILE
from orchestrator.runtimes import enter
from orchestrator.spec import Job

JOB = Job.model_validate({"name": "j", "script": "train.py"})


def test_no_runtime_is_nothing_in_front() -> None:
    assert enter(JOB, PROFILE.validate_python({"name": "p", "kind": "local"})) == ()


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer", "pyxis"])
@pytest.mark.parametrize("container", [None, {"image": "img:1"}])
def test_a_runtime_that_is_not_there_yet_is_refused(runtime: str, container: dict[str, str] | None) -> None:
    job = JOB.model_copy(update={"container": container and Job.model_validate(
        {"name": "j", "script": "t.py", "container": container}).container})  # fmt: skip
    with pytest.raises(UsageError) as caught:
        enter(job, PROFILE.validate_python({"name": "p", "kind": "local", "runtime": runtime}))
    assert runtime in caught.value.message
    assert "runtime: none" in caught.value.hint
