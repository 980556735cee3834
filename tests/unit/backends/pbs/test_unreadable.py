"""An answer of qstat that can't be read, which says nothing about a job."""

from __future__ import annotations

import pytest

from orchestrator.backends.pbs.parse import parse_qstat
from orchestrator.errors import BackendError

JOB = '{"Jobs": {"17.server": {"Job_Name": "r-1", "job_state": "R", "Variable_List": {%s}}}}'
BROKEN = (  # as OpenPBS prints a job's environment
    '\n "BASH_FUNC_module%%":"() {  eval `/usr/bin/modulecmd bash "$@"` }"\n ',
    '\n "FOO":005\n ',
)


@pytest.mark.parametrize("environment", BROKEN)
def test_a_job_is_seen_whatever_its_environment_has(environment: str) -> None:
    assert [job.job_id for job in parse_qstat(JOB % environment)] == ["17"]


def test_what_can_not_be_read_is_no_empty_queue() -> None:
    with pytest.raises(BackendError, match="can't be parsed"):
        parse_qstat('{"Jobs": {"17.server": ')
    assert parse_qstat("") == []
