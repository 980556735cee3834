"""Which variables the ranks get, and that secrets are shown nowhere."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.protocol.masking import mask
from orchestrator.specs.border import valid
from orchestrator.specs.environment import parse_env_options, resolve
from orchestrator.specs.job import Job


def job(**fields: Any) -> Job:
    return valid(Job, {"name": "x", "command": ["ls"], **fields})


SHELL = {
    "PATH": "/bin", "HOME": "/h", "PWD": "/w", "RANK": "7", "MASTER_PORT": "1", "SLURM_JOB_ID": "3", "ORCH_X": "1",
    "WANDB_MODE": "offline", "WANDB_API_KEY": "k3y-value", "TOKEN": "t0ken", "BASH_FUNC_x%%": "() {}", "LOCAL_X": "1",
}  # fmt: skip


def test_values_come_from_the_job_the_shell_and_options_in_this_order() -> None:
    made = resolve(
        job(env={"A": "job", "B": "job", "TOKEN": None, "C": None}, pass_env=["WANDB_*"], secrets=["WANDB_API_KEY"]),
        {**SHELL, "A": "shell"},
        {"B": "given", "C": "given", "D": "given"},
    )
    assert made.env == {
        "A": "job", "B": "given", "C": "given", "D": "given", "TOKEN": "t0ken", "WANDB_MODE": "offline",
    }  # fmt: skip
    assert made.secrets == {"WANDB_API_KEY": "k3y-value"}
    assert "k3y-value" not in repr(made)


def test_a_secret_given_as_an_option_stays_one() -> None:
    made = resolve(job(secrets=["TOKEN"]), {}, {"TOKEN": "abcdef"})
    assert (made.env, made.secrets) == ({}, {"TOKEN": "abcdef"})


def test_a_wildcard_leaves_out_what_belongs_to_the_shell() -> None:
    assert sorted(resolve(job(pass_env=["*"]), SHELL, {}).env) == [
        "HOME",
        "PATH",
        "TOKEN",
        "WANDB_API_KEY",
        "WANDB_MODE",
    ]
    named = job(pass_env=["PWD", "RANK", "SLURM_JOB_ID", "LOCAL_X"])
    assert sorted(resolve(named, SHELL, {}).env) == ["PWD"]
    inside = job(pass_env=["*", "PATH"], container={"image": "i"})
    assert not {"PATH", "HOME"} & set(resolve(inside, SHELL, {}).env)


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(job(env={"A": None, "TOKEN": None}, secrets=["S", "T"]), SHELL, {})
    assert str(caught.value) == (
        "the job needs A, S (a secret), T (a secret), which is not set in this shell\n"
        "export them before orch submit, or add --env A=VALUE"
    )
    with pytest.raises(UsageError, match="would be visible to others"):
        resolve(job(secrets=["S"]), SHELL, {})


def test_a_value_that_linux_passes_to_no_program_is_named() -> None:
    most = 131_072 - len("A=") - 1
    assert resolve(job(env={"A": "x" * most}), SHELL, {}).env["A"] == "x" * most
    for shell, fields, given_ in (
        ({}, {}, {"A": "x" * (most + 1)}),
        ({"A": "x" * (most + 1)}, {"env": {"A": None}}, {}),
        ({"A": "é" * (most // 2 + 1)}, {"secrets": ["A"]}, {}),
        ({"A": "x" * (most + 1)}, {"pass_env": ["A"]}, {}),
    ):
        with pytest.raises(UsageError, match=r"^A has 131,07[23] bytes, and Linux passes at most 131,071"):
            resolve(job(**fields), shell, given_)


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "ORCH_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"])
def test_what_orch_sets_nobody_else_may(name: str) -> None:
    for fields, given_ in (({"env": {name: "1"}}, {}), ({"secrets": [name]}, {}), ({}, {name: "1"})):
        with pytest.raises(UsageError, match="set by orch"):
            resolve(job(**fields), SHELL, given_)


def test_options() -> None:
    assert parse_env_options(["A=1", "B=x=y", "C=", "TOKEN", "A=2"], SHELL) == {
        "A": "2", "B": "x=y", "C": "", "TOKEN": "t0ken",
    }  # fmt: skip
    with pytest.raises(UsageError, match="--env X, Y: not set in this shell"):
        parse_env_options(["X", "Y"], SHELL)
    for broken in ("", "=x", "1A=x", "A B"):
        with pytest.raises(UsageError, match="is not the name of a variable"):
            parse_env_options([broken], SHELL)


def test_masking() -> None:
    secrets = {"T": "abcd", "LONG": "abcd-efgh", "S": "ab", "E": "", "M": "first line\nsecond one", "Q": 'say "it"'}
    assert mask("abcd abcd-efgh xabcdx ab", secrets) == "*** *** x***x ab"
    assert mask("S=ab", secrets) == "S=***"
    assert mask(json.dumps(secrets["M"]), secrets) == '"***"'
    assert mask("-- second one --", secrets) == "-- *** --"
    assert mask(shlex.quote(secrets["Q"]) + json.dumps(secrets["Q"]), secrets) == '***"***"'
    assert mask("nothing", {}) == "nothing"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(min_size=4, max_size=8), min_size=1, max_size=4), st.text(max_size=5))
def test_no_secret_is_left(values: list[str], between: str) -> None:
    secrets = {f"S{i}": value for i, value in enumerate(values)}
    text = between.join([*values, *(json.dumps(v) for v in values), *(shlex.quote(v) for v in values)])
    shown = mask(text, secrets)
    assert not [v for v in values if v in shown.replace("***", "\ue000") and "*" not in v and v not in between * 9]


def test_what_only_looks_secret_is_not_shown_either() -> None:
    shell = {"AWS_SECRET_ACCESS_KEY": "abcdefgh-1", "DB_PASSWORD": "hi", "PLAIN": "plain-value", "API_KEY": "declared"}
    job = valid(Job, {"name": "j", "command": ["x"], "pass_env": ["*"], "secrets": ["API_KEY"]})
    found = resolve(job, shell, {})
    assert found.passed == ("AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PLAIN")
    shown = found.masked(f"hi abcdefgh-1 plain-value declared DB_PASSWORD=hi {json.dumps({'DB_PASSWORD': 'hi'})}")
    assert shown == 'hi *** plain-value *** DB_PASSWORD=*** {"DB_PASSWORD": "***"}'
