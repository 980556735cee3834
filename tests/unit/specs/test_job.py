"""The two models, as Python code builds them."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from orchestrator.protocol.frozen import default_of
from orchestrator.protocol.training_options import NOT_TAKEN, STRATEGIES, not_taken
from orchestrator.specs.border import hints_of, read, valid
from orchestrator.specs.job import Job, Mount, Training
from orchestrator.specs.profile import LocalProfile, SshProfile
from orchestrator.specs.program import program_of
from orchestrator.specs.slurm_profile import SlurmProfile
from orchestrator.specs.spec import names_of
from orchestrator.specs.validation import check, fit, world_size
from orchestrator.training import options as training_options
from orchestrator.training.errors import UserError
from tests.profiles import valid_profile


def job(**fields: Any) -> Job:
    return valid(Job, {"name": "x", "script": "a.py", **fields})


def test_lists_are_taken_for_tuples_and_nothing_can_be_changed() -> None:
    made = job(args=["a", 1, 0.5])
    assert made.args == ("a", "1", "0.5")
    with pytest.raises(AttributeError, match="it is frozen"):
        made.name = "y"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"script": None}, "none is given"),
        ({"module": "a"}, "module and script are given"),
        ({"script": None, "command": []}, "at least 1"),
        ({"script": None, "command": ["a"], "launcher": "fork"}, "launcher: fork"),
        ({"script": None, "command": ["a"], "launcher": "torchrun"}, "runs a module or a script"),
        ({"name": "-x"}, "start with a letter"),
        ({"name": "x" * 41}, "1 to 40"),
        ({"name": "x\n#SBATCH --account=other"}, "1 to 40"),
        ({"script": "a\nb"}, "control character"),
        ({"args": [True]}, "YAML boolean"),
        ({"args": ["a\0b"]}, "NUL byte"),
        ({"args": [None]}, "valid string"),
        ({"env": {"1A": "x"}}, "can't be the name"),
        ({"env": {"A": "x"}, "secrets": ["A"]}, "both env and secrets"),
        ({"resources": {"time": "1x"}}, "is not a duration"),
        ({"resources": {"mem": 0}}, "greater than 0"),
        ({"limits": {"grace": -1}}, "greater than or equal"),
        ({"limits": {"link": "6s"}}, "greater than or equal"),
        ({"nodes": 3}, "Unexpected keyword"),
        ({"version": 2}, "should be 1"),
        ({"script": None, "training": {"task": "t.py", "epochs": 1, "steps": 1}}, "not both"),
        ({"container": {"image": "i", "mounts": ["/a"]}}, "source:target"),
        ({"inputs": [{"name": "A", "source": "s", "sha256": "x"}]}, "pattern"),
        ({"metric": {"name": "wer", "better": "less"}}, "'lower' or 'higher'"),
        ({"metric": {"better": "lower"}}, "Field required"),
        ({"metric": ""}, "at least 1"),
    ],
)
def test_what_a_job_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        job(**fields)


def test_short_forms() -> None:
    made = job(container={"image": "i", "mounts": ["/a:/b", "/c:/d:ro"], "shm": "1G"}, resources={"time": "1h"})
    assert made.container is not None
    assert made.container.mounts == (Mount(source="/a", target="/b"), Mount(source="/c", target="/d", read_only=True))
    assert made.container.shm == 1 << 30
    assert made.resources.time == 3600
    assert job(metric="wer").metric == job(metric={"name": "wer"}).metric
    assert job().metric is None


def test_hosts_are_expanded_and_counted() -> None:
    profile = valid_profile({"kind": "ssh", "name": "p", "hosts": ["u@n[1-2]:23", {"host": "b"}]})
    assert isinstance(profile, SshProfile)
    assert profile.nodes == 3
    assert [(h.host, h.user, h.port) for h in profile.hosts] == [("n1", "u", 23), ("n2", "u", 23), ("b", None, None)]
    ranged = {"host": "n[1-2]", "addr": "10.0.0.[1-2]"}
    paired = valid(SshProfile, {"kind": "ssh", "name": "p", "hosts": [ranged]})
    assert [(h.host, h.addr) for h in paired.hosts] == [("n1", "10.0.0.1"), ("n2", "10.0.0.2")]


def test_an_ssh_profile_takes_lists_as_json_gives_them() -> None:
    text = '{"kind": "ssh", "name": "p", "hosts": ["a", "b"], "setup": ["x"], "nproc_per_node": [1, 2]}'
    assert read(SshProfile, text).nproc_per_node == (1, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hosts": []}, "at least 1"),
        ({"hosts": ["a", "a"]}, "listed twice"),
        ({"hosts": ["n[1-"]}, "unmatched bracket"),
        ({"hosts": ["a@"]}, "not a host"),
        ({"hosts": ["@a"]}, "not a host"),
        ({"hosts": ["a:x"]}, "not a host"),
        ({"hosts": [{"host": "n[1-2]", "addr": "m"}]}, "names 2 hosts"),
        ({"hosts": ["a"], "nodes": 2}, "1 host is listed"),
        ({"hosts": ["a", "b"], "nproc_per_node": [1]}, "lists 1 numbers for 2 nodes"),
        ({"hosts": ["a"], "ports": "1-2"}, "between 1024 and 65535"),
        ({"hosts": ["a"], "ports": "3000-2000"}, "between 1024 and 65535"),
        ({"hosts": ["a"], "nproc_per_node": True}, "valid integer"),
    ],
)
def test_what_an_ssh_profile_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        valid(SshProfile, {"kind": "ssh", "name": "p", **fields})


def test_a_newline_never_reaches_a_batch_script() -> None:
    with pytest.raises(ValidationError, match="control character"):
        valid(SlurmProfile, {"kind": "slurm", "name": "p", "partition": "gpu\nrm"})
    with pytest.raises(ValidationError, match="control character"):
        valid(SlurmProfile, {"kind": "slurm", "name": "p", "sbatch": {"comment": "a\nb"}})


def test_profiles_keep_their_defaults_as_given() -> None:
    profile = LocalProfile(kind="local", name="p", defaults={"env": {"A": 1}})
    assert profile.defaults == {"env": {"A": 1}}


def test_programs() -> None:
    assert program_of(job(args=["-x"])) == ("script", "a.py", ["-x"])
    assert program_of(job(script=None, module="m")) == ("module", "m", [])
    assert program_of(job(script=None, command=["sh", "-c"], args=["x"])) == ("command", "sh", ["-c", "x"])
    training = {"task": "t.py", "steps": 5, "seed": 1, "options": {"a": True, "b": 2}}
    kind, target, args = program_of(job(script=None, training=training))
    assert (kind, target) == ("module", "orchestrator.training")
    assert " ".join(args) == "--task t.py --steps 5 --seed 1 --global-batch 96 --option a=true --option b=2"


def test_a_training_says_its_strategy_as_the_entrypoint_takes_it() -> None:
    training = {"task": "t.py", "strategy": "ddp", "gradient_as_bucket_view": False, "accumulate": 2}
    args = program_of(job(script=None, training=training))[2]
    options = training_options.parse(args)
    assert (options.strategy, options.gradient_as_bucket_view, options.accumulate) == ("ddp", False, 2)


def test_a_job_and_the_entrypoint_know_the_same_options() -> None:
    """Each field that is set arrives as an option of its name, and no option lacks its field."""
    values: dict[str, Any] = {"task": "t.py"}
    for each in dataclasses.fields(Training):
        choices = get_args(hints_of(Training)[each.name])
        if isinstance(each.default, bool):
            values[each.name] = not each.default
        elif choices and isinstance(choices[0], str):
            values[each.name] = next(choice for choice in choices if choice != each.default)
    values |= {"steps": 7, "lr": 0.5, "seed": 3, "eval_every": 4, "save_every": 5, "log_every": 6, "data": "d"}
    values["workers"] = 3
    values |= {"global_batch": 8, "accumulate": 2, "bucket_cap_mb": 9, "micro_batches": 11, "offline": "digits"}
    values["offline_epochs"] = 8
    values |= {"init_method": "tcp://h:1", "clip": 0.5, "warmup": 12, "timeout": 13, "step_timeout": 14}
    values |= {"shard_ranks": 15, "tensor_ranks": 16}
    del values["strategy"]
    unset = set(names_of(Training)) - values.keys()
    assert unset == {"epochs", "options", "strategy"}
    arrived = set()
    for strategy in ("ddp", "pipeline", "fsdp"):  # each takes what the others do not
        given = {"strategy": strategy, **values}
        given = {name: value for name, value in given.items() if name not in not_taken(strategy, given)}
        options = training_options.parse(program_of(job(script=None, training=given))[2])
        for name, value in given.items():
            assert str(getattr(options, {"data": "data_dir"}.get(name, name))) == str(value), name
        arrived |= given.keys()
    assert arrived == {"strategy", *values}


@pytest.mark.parametrize("name", sorted(NOT_TAKEN))
def test_an_option_is_refused_where_its_strategy_does_not_take_it(name: str) -> None:
    """At the submit and by the entrypoint, and nowhere else; what was left at its default is never refused."""
    other = {"gradient_as_bucket_view": False, "bucket_cap_mb": 9, "gradient_compression": "bf16", "micro_batches": 2,
             "compile": "aot_eager", "compile_mode": "max-autotune", "reshard_after_forward": False, "shard_ranks": 2,
             "tensor_ranks": 2}.get(name, True)  # fmt: skip
    assert set(NOT_TAKEN[name]) < set(STRATEGIES)
    for strategy in STRATEGIES:
        for value in (other, default_of(Training.__dataclass_fields__[name])):
            made = job(script=None, training={"task": "t.py", "strategy": strategy, name: value})
            problems = [(each.dotted, each.message) for each in check(made, LocalProfile(kind="local", name="p"))]
            args = program_of(made)[2]
            if value == other and (why := NOT_TAKEN[name].get(strategy)):
                assert problems == [(f"training.{name}", f"is not for strategy {strategy}: {why}")]
                with pytest.raises(UserError, match=f" does not work with the strategy {strategy}: {why}."):
                    training_options.parse(args)
            else:
                assert problems == []
                assert getattr(training_options.parse(args), name) == value


def test_it_is_said_which_strategies_take_an_option() -> None:
    with pytest.raises(UserError, match=r"^--bucket-cap-mb does not work with the strategy fsdp: only ddp takes it\.$"):
        training_options.parse(["--task", "t.py", "--strategy", "fsdp", "--bucket-cap-mb", "1"])
    sentence = r"^--gradient-as-bucket-view does not work with the strategy single: only ddp and accelerate take it\.$"
    with pytest.raises(UserError, match=sentence):
        training_options.parse(["--task", "t.py", "--strategy", "single", "--no-gradient-as-bucket-view"])


def test_a_training_in_one_process_takes_one_rank_of_a_profile() -> None:
    hosts = [{"host": "a", "nproc_per_node": 3}, {"host": "b"}]
    profile = valid(SshProfile, {"kind": "ssh", "name": "p", "nodes": 2, "nproc_per_node": 4, "hosts": hosts})
    several = job(script=None, training={"task": "t.py", "strategy": "ddp"})
    assert fit(several, profile) is profile
    alone = job(script=None, training={"task": "t.py", "strategy": "single", "global_batch": 7})
    assert world_size(fit(alone, profile)) == 1
    assert check(alone, fit(alone, profile)) == []


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"exclude": ["a[b-a]"]}, "can't be read"),
        ({"exclude": ["!"]}, "names nothing"),
        ({"include": ["!a"]}, "write it under exclude"),
    ],
)
def test_patterns_of_outputs_that_can_not_be_meant_are_refused(outputs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        valid(Job, {"name": "job", "command": ["true"], "outputs": outputs})
