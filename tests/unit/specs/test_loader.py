"""From files and options to a job and a profile: what wins, what is found, and how mistakes read."""
# ruff: noqa: E501  (a mistake and its message stand in one line)

from __future__ import annotations

import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import SpecError, UsageError
from orchestrator.specs.border import valid
from orchestrator.specs.documents import loader as loading
from orchestrator.specs.documents import lookup
from orchestrator.specs.documents.default_profile import default_profile
from orchestrator.specs.documents.loaded import Loaded
from orchestrator.specs.documents.loader import load, load_profile
from orchestrator.specs.documents.lookup import known_profiles
from orchestrator.specs.documents.paths import hidden_files, job_path, profile_path
from orchestrator.specs.profile import SshProfile
from orchestrator.specs.spec import names_of
from orchestrator.specs.validation import world_size

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _no_profiles_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("config")
    monkeypatch.setattr(lookup.platformdirs, "user_config_dir", lambda name: str(home / name))


class Place:
    """A folder with one job and one profile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").touch()
        self.write("script: train.py\n", "kind: local\n")

    def write(self, job: str, profile: str) -> None:
        (self.folder / "job.yaml").write_text(job)
        (self.folder / "p.yaml").write_text(profile)

    def load(self, *sets: str, **flags: Any) -> Loaded:
        dotted = {name.replace("__", "."): value for name, value in flags.items()}
        return load("job.yaml", "p.yaml", sets=sets, flags=dotted, cwd=self.folder)

    def refusal(self, *sets: str, **flags: Any) -> str:
        with pytest.raises(UsageError) as caught:
            self.load(*sets, **flags)
        return str(caught.value).replace(f"{self.folder}/", "")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


def test_the_strongest_value_wins(place: Place) -> None:
    place.write(
        "script: train.py\nenv: {A: job, B: job, C: job}\nargs: [job]\n",
        "kind: local\ndefaults:\n  env: {A: profile, D: profile}\n  args: [a, b]\n  limits: {join: 1s}\n",
    )
    loaded = place.load("job.env.B=set", "job.env.C=set", job__env={"C": "flag"}, profile__nodes=2, job__name=None)
    assert loaded.job.env == {"A": "job", "B": "set", "C": "flag", "D": "profile"}
    assert loaded.job.args == ("job",)
    assert loaded.job.limits.join == 1
    assert loaded.job.limits.grace == 30
    assert loaded.profile.nodes == 2


LAYERS = ("defaults", "job", "set", "flag")


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(LAYERS), st.integers(1, 9)))
def test_each_layer_hides_the_ones_below(layers: dict[str, int]) -> None:
    trees = {name: {"limits": {"join": value}} for name, value in layers.items()}
    expected = next((layers[name] for name in reversed(LAYERS) if name in layers), 300)
    sets = [f"job.limits.join={layers['set']}"] if "set" in layers else []
    if "defaults" in layers:
        sets.append(f"profile.defaults.limits.join={layers['defaults']}")
    if "job" in layers:
        sets.insert(0, f"job.limits={trees['job']['limits']}".replace("'", ""))
    flags = {"job.limits.join": layers.get("flag")}
    loaded = load("hello", "local", sets=sets, flags=flags, cwd=ROOT)
    assert loaded.job.limits.join == expected


def test_values_of_set_are_yaml(place: Place) -> None:
    loaded = place.load("job.args=[--lr, 1e-3, 0x10, 'x y']", "job.env.B=''", "job.env.N=null", "job.resources.time=2h")
    assert loaded.job.args == ("--lr", "1e-3", "0x10", "x y")
    assert loaded.job.env == {"B": "", "N": None}
    assert loaded.job.resources.time == 7200


def test_null_takes_a_value_away(place: Place) -> None:
    place.write("script: train.py\n", "kind: local\ndefaults: {container: {image: x}}\n")
    assert place.load("job.container=null").job.container is None


def test_names_come_from_the_files(place: Place) -> None:
    (place.folder / "_my job!.yaml").write_text("command: [ls]\n")
    assert load("_my job!.yaml", "local", cwd=place.folder).job.name == "my-job-"
    assert place.load().job.name == "job"
    assert place.load().profile.name == "p"


def test_code_is_relative_to_the_job_file(place: Place) -> None:
    (place.folder / "jobs").mkdir()
    (place.folder / "jobs" / "a.yaml").write_text("script: train.py\ncode: {dir: ..}\n")
    loaded = load("a", "p.yaml", cwd=place.folder)
    assert loaded.code_dir == place.folder
    assert loaded.job_path == place.folder / "jobs" / "a.yaml"


@pytest.mark.parametrize(
    "fields",
    [
        "hosts: [n1, 'me@n2.example.org:2222', 'DOM\\\\me@n3', {host: 'fe80::1%eth0', addr: '10.0.0.1'}]",
        "hosts: ['gpu[01-12]'], user: me.too, jump: 'a@b.org:22,c'",
        "hosts: [n1], jump: 'me@[2001:db8::1]:22'", "hosts: [n1], jump: none", "hosts: [n1], supervisor: 'a-b@c_d.e:22'",
        "hosts: [{host: n1, user: me@example.org}]",
    ],
)  # fmt: skip
def test_names_of_hosts_and_users(place: Place, fields: str) -> None:
    place.write("command: [ls]\n", f"{{kind: ssh, {fields}}}\n")
    assert isinstance(place.load().profile, SshProfile)


@pytest.mark.parametrize(
    "bad", ["-oProxyCommand=x", "a b", "a;b", "$(id)", "`id`", "a|b", "a'b", "a/b", "n\u200b1", 'a"b']
)
@pytest.mark.parametrize("field", ["host", "user", "jump", "addr", "spare", "supervisor", "login"])
def test_what_a_shell_or_ssh_would_take_for_something_else(place: Place, field: str, bad: str) -> None:
    quoted = json.dumps(bad)
    profile = {
        "host": f"hosts: [{{host: {quoted}}}]", "user": f"hosts: [n1], user: {quoted}", "jump": f"hosts: [n1], jump: {quoted}",
        "addr": f"hosts: [{{host: n1, addr: {quoted}}}]", "spare": f"hosts: [n1], spares: [{{host: {quoted}}}]",
        "supervisor": f"hosts: [n1], supervisor: {quoted}", "login": f"login: {quoted}",
    }[field]  # fmt: skip
    place.write("command: [ls]\n", f"{{kind: {'slurm' if field == 'login' else 'ssh'}, {profile}}}\n")
    assert "p.yaml:1:" in place.refusal()


def elsewhere(place: Place) -> Path:
    """A folder beside the job's own."""
    folder = place.folder.parent / f"{place.folder.name}-beside"
    folder.mkdir()
    (folder / "train.py").touch()
    return folder


def test_a_code_folder_elsewhere_needs_the_users_word(place: Place) -> None:
    folder = elsewhere(place)
    place.write(f"script: train.py\ncode: {{dir: {folder}}}\n", "kind: local\n")
    said = f"job.yaml:2:13: code.dir: {folder} lies outside of the job file's folder and repository"
    assert place.refusal().startswith(said)
    assert "add --allow-code-dir" in place.refusal()
    place.write("script: train.py\n", f"kind: local\ndefaults: {{code: {{dir: {folder}}}}}\n")
    assert "lies outside" in place.refusal()  # a profile's word is not the user's either
    assert load("job.yaml", "p.yaml", cwd=place.folder, allow_code_dir=True).code_dir == folder
    assert place.load(f"job.code.dir={folder}").code_dir == folder


def test_a_code_folder_in_the_same_repository_is_the_jobs_own(place: Place) -> None:
    (place.folder / "deep" / "er").mkdir(parents=True)
    (place.folder / "deep" / "er" / "job.yaml").write_text("script: train.py\ncode: {dir: ../..}\n")
    with pytest.raises(SpecError, match="lies outside"):
        load("deep/er/job.yaml", "p.yaml", cwd=place.folder)
    (place.folder / ".git").mkdir()
    assert load("deep/er/job.yaml", "p.yaml", cwd=place.folder).code_dir == place.folder


@pytest.mark.parametrize("name", ["", ".ssh", ".aws", ".gnupg/private-keys-v1.d", ".config", ".cache/huggingface"])
def test_credentials_are_never_code(place: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    home = place.folder / "home"
    (home / name).mkdir(parents=True)
    (home / ".git").mkdir()
    (home / "job.yaml").write_text(f"command: [ls]\ncode: {{dir: '~/{name}'}}\n")
    monkeypatch.setenv("HOME", str(home))
    for job, sets in (("home/job.yaml", ()), ("job.yaml", (f"job.code.dir=~/{name}",))):
        with pytest.raises(UsageError, match="is never sent") as caught:
            load(job, "p.yaml", cwd=place.folder, sets=sets, allow_code_dir=True)
        assert ("whole home folder" in str(caught.value)) is (name == "")
    for folder in (home.parent, Path("/")):
        with pytest.raises(UsageError, match="is never sent"):
            place.load(f"job.code.dir={folder}")


@pytest.mark.parametrize(
    ("job", "profile", "message"),
    [
        ("script: train.py\nmodul: a\n", "", "job.yaml:2:1: 'modul' is not a field; did you mean 'module'?"),
        ("script: train.py\nnnodes: 2\n", "", "job.yaml:2:1: 'nnodes' belongs in the profile, as 'nodes'"),
        ("script: train.py\nnode: 2\n", "", "job.yaml:2:1: 'node' belongs in the profile, as 'nodes'"),
        ("script: train.py\ntime: 2\n", "", "job.yaml:2:1: 'time' is not a field here; did you mean 'resources.time'?"),
        ("script: train.py\nretry: {infr: 2}\n", "", "job.yaml:2:9: 'retry.infr' is not a field; did you mean 'infra'?"),
        ("script: train.py\nzzz: 2\n", "", "'zzz' is not a field; the nearest are "),
        ("script: train.py\nepoks: 2\n", "", "'epoks' is not a field here; did you mean 'training.epochs'?"),
        ("script: train.py\nzzz: 2\n", "", "; orch schema job: all"),
        ("script: train.py\nretry: {zzz: 2}\n", "", "'retry.zzz' is not a field; known here: user_error, infra"),
        ("script: train.py\nretry: 3\n", "", "retry: expected a mapping, found the number 3; write {infra: 3} for"),
        ("script: train.py\nenv: [A=1, B=x]\n", "", "env: expected a mapping, found a list; write {A: \"1\", B: x}"),
        ("script: train.py\nenv: A=1\n", "", "; write {A: \"1\"}"),
        ("script: train.py\nlauncher: deepspeed\n", "", "found the text 'deepspeed'; leave it out: orch itself starts"),
        ("script: train.py\nmodules: [cuda]\n", "",
         "'modules' is not a field of the job; in the profile, write setup: [module load NAME]"),
        ("script: train.py\n", "modules: [cuda]", "'modules' is not a field; write setup: [module load NAME]"),
        ("script: 3\n", "", "job.yaml:1:9: script: expected text, found the number 3; put quotes around it"),
        ("script: train.py\nargs: --lr\n", "", "job.yaml:2:7: args: expected a list, found the text '--lr'; write [--lr]"),
        ("script: train.py\nargs: [a, yes, true]\n", "", "job.yaml:2:16: 'args[2]' is a YAML boolean; put quotes"),
        ("script: train.py\nargs: [a, {b: c}]\n", "", "job.yaml:2:11: args[1]: expected text, found a mapping"),
        ("script: train.py\nlauncher: frk\n", "", "found the text 'frk'; did you mean 'fork'?"),
        ("script: train.py\nmetric: {name: wer, better: lowr}\n", "", "found the text 'lowr'; did you mean 'lower'?"),
        ("script: train.py\nmetrics: wer\n", "", "job.yaml:2:1: 'metrics' is not a field; did you mean 'metric'?"),
        ("script: train.py\nenv: {1A: x}\n", "", "job.yaml:2:7: env.1A: '1A' can't be the name"),
        ("script: train.py\nenv: [A]\n", "", "job.yaml:2:6: env: expected a mapping, found a list"),
        ("script: train.py\ncode: null\n", "", "job.yaml:2:7: code: expected a mapping, found nothing (null)"),
        ("script: train.py\nlimits: {join: 12:30}\n", "", "job.yaml:2:16: limits.join: '12:30' can be read in two ways"),
        ("script: train.py\ncode: {max_size: -1}\n", "", "code.max_size: expected more than 0, found the number -1"),
        ("training: {task: train.py, options: {a: [1]}}\n", "",
         "job.yaml:1:41: training.options.a: expected true or false or a whole number or a number or text, found a list"),
        ("training: {epochs: 1}\n", "", "job.yaml:1:11: 'training.task' is missing: the task's Python file"),
        ("training: {task: train.py, lr: .inf}\n", "", "training.lr: expected a number, found the number .inf"),
        ("name: x\n", "", "job.yaml:1:1: give exactly one of module, script, command, training (none is"),
        ("name: x\nscript: train.py\nmodule: m\n", "", "job.yaml:3:9: module: give exactly one"),
        ("script: train.py\ncontainer: {image: i, mounts: [/a]}\n", "runtime: docker",
         "job.yaml:2:32: container.mounts[0]: '/a' is not a mount"),
        ("script: train.py\nversion: 2\n", "", "job.yaml:2:10: version: expected 1, found the number 2"),
        ("script: train.py\n", "nproc_per_node: four", "nproc_per_node: expected a whole number or 'auto' or a list, found"),
        ("script: train.py\n", "nproc_per_node: 0", "p.yaml:2:17: nproc_per_node: expected at least 1, found the number 0"),
        ("script: train.py\n", "nproc_per_node: [1, x]", "p.yaml:2:21: nproc_per_node[1]: expected a whole number"),
        ("script: train.py\n", "nodes: 2\nnproc_per_node: [1]", "p.yaml:3:17: nproc_per_node: nproc_per_node lists 1"),
        ("script: train.py\n", "partition: x", "'partition' belongs in slurm profiles, not in this profile"),
        ("script: train.py\n", "args: []", "p.yaml:2:1: 'args' belongs in the job, not the profile"),
        ("script: train.py\n", "defaults: {cntainer: {}}", "p.yaml:2:12: 'cntainer' is not a field; did you mean 'contain"),
        ("script: train.py\n", "runtime: dcoker", "did you mean 'docker'?"),
        ("script: train.py\n", "ports: 20-30", "p.yaml:2:8: ports: '20-30' is not a range of ports"),
        ("script: trian.py\n", "", "job.yaml:1:9: script: there is no 'trian.py' in the code folder"),
        ("script: trian.py\n", "", "; did you mean 'train.py'?"),
        ("script: sub/train.py\n", "", "; did you mean 'train.py'?"),
        (f"script: {'n' * 300}\n", "", "job.yaml:1:9: script: there is no 'nnn"),
        (f"script: train.py\ncode: {{dir: {'n' * 300}}}\n", "", "does not exist"),
        ("script: ../train.py\n", "", "lies outside the code folder"),
        ("script: .\n", "", "is a folder, not a file"),
        ("training: {task: mnist.py}\n", "", "job.yaml:1:18: training.task: there is no 'mnist.py'"),
        ("command: [./train.py]\n", "", "job.yaml:1:11: command[0]: "),
        ("script: train.py\ncode: {dir: src}\n", "", "job.yaml:2:13: code.dir: the code folder src does not exist"),
        ("training: {task: train.py, global_batch: 97}\n", "nproc_per_node: 2\nnodes: 2",
         "job.yaml:1:42: training.global_batch: 97 samples per step can't be shared equally by the 4 ranks"),
        ("training: {task: train.py, global_batch: 97}\n", "nproc_per_node: 4", "use 96 or 100"),
        ("training: {task: train.py, global_batch: 2}\n", "nproc_per_node: 4", "; use 4"),
        ("training: {task: train.py, strategy: fsdp, bucket_cap_mb: 1}\n", "",
         "job.yaml:1:59: 'training.bucket_cap_mb' is not for strategy fsdp: only ddp takes it"),
        ("script: train.py\n", "nproc_per_node: 1024\nnodes: 100", "asks for 102400 ranks, more than the 100000"),
        ("script: train.py\ncontainer: {image: i}\n", "", "container: the job names a container image, but profile 'p'"),
        ("script: train.py\n", "runtime: podman", "profile 'p' runs jobs in podman, but the job names no image"),
        ("script: train.py\ncontainer: {image: i}\n", "runtime: pyxis", "runtime pyxis is a part of Slurm"),
    ],
)  # fmt: skip
def test_mistakes(place: Place, job: str, profile: str, message: str) -> None:
    place.write(job, f"kind: local\n{profile}\n")
    assert message in place.refusal()


def test_words_and_variables_that_linux_passes_to_no_program_are_named_with_their_place(place: Place) -> None:
    big = "x" * 200_000
    place.write(
        f"env:\n  T_BIG: {big}\ncommand: [sh, -c, {big}]\nargs: [a, {big}]\n", f"kind: local\nenv: {{S: {big}}}\n"
    )
    said = place.refusal()
    for words in ("job.yaml:2:10: env.T_BIG: has 200,006 bytes", "job.yaml:3:19: command[2]: has 200,000 bytes",
                  "args[1]: has 200,000 bytes", "profile 'p': env.S has 200,002 bytes"):  # fmt: skip
        assert words in said, said[:3000]
    place.write("training: {task: train.py, options: {text: " + big + "}}\n", "kind: local\n")
    assert "training.options.text: has 200,005 bytes" in place.refusal()
    place.write("script: train.py\n", "kind: local\n")
    assert "args[0]: has 200,000 bytes" in place.refusal(f"job.args=[{big}]")


def test_min_nodes_needs_a_sampler_that_keeps_its_place(place: Place) -> None:
    job = "training: {task: train.py, global_batch: 96, sampler: distributed}\n"
    place.write(job, "kind: ssh\nhosts: [a, b, c]\nnproc_per_node: 1\nmin_nodes: 2\n")
    assert "lets a run go on with 2 of 3 nodes (min_nodes)" in place.refusal()
    place.write(job, "kind: ssh\nhosts: [a, b, c]\nmin_nodes: 4\n")
    assert "min_nodes is 4, but nodes is 3" in place.refusal()


def test_mistakes_in_hosts(place: Place) -> None:
    place.write("script: train.py\n", "kind: ssh\nhosts:\n - hst: a\n - 3\n - a:0\n - 'b@'\n")
    assert place.refusal().splitlines() == [
        "p.yaml:3:4: 'hosts[0].hst' is not a field; did you mean 'host'?",
        "p.yaml:4:4: hosts[1]: expected text or a mapping, found the number 3",
        "p.yaml:5:4: hosts[2]: its port: expected at least 1, found the text 'a:0'",
        "p.yaml:6:4: hosts[3]: 'b@' is not a host; write host, user@host or user@host:port",
    ]


def test_every_way_to_write_a_host_counts_as_a_node(place: Place) -> None:
    for hosts in (
        '["fd00::2", "fd00::3"]',
        '["[fd00::2]", "me@[fd00::3]:2222"]',
        '["me@n[1-2]:22"]',
        '[{host: "n[1-2]"}]',
    ):
        place.write("script: train.py\n", f"kind: ssh\nhosts: {hosts}\n")
        assert place.load().profile.nodes == 2


def test_the_spares_of_a_slurm_job_are_a_number_beside_several_nodes(place: Place) -> None:
    place.write("script: train.py\n", "{kind: slurm, spares: 1}\n")
    assert "spares can't replace the first node, which runs the batch script, and nodes is 1" in place.refusal()
    place.write("training: {task: train.py, strategy: single}\n", "{kind: slurm, nodes: 3, spares: 2}\n")
    assert vars(place.load().profile)["spares"] is None  # its one process is on the first node
    place.write("script: train.py\n", "{kind: slurm, nodes: 2, spares: [n3]}\n")
    assert "spares: expected a whole number" in place.refusal()


def test_a_slurm_profile_without_gpus_refuses_a_job_with_gpus(place: Place) -> None:
    place.write("script: train.py\nresources: {gpus: 4}\n", "kind: slurm\n")
    assert "job.yaml:2:19: resources.gpus: asks for 4 GPUs per node" in place.refusal()
    for given_by in ("gpus_per_node=4", "gres='gpu:4'", "sbatch.gpus-per-task=1"):
        assert place.load(f"profile.{given_by}").job.resources.gpus == 4
    assert "asks Slurm only for 2 (gres: gpu:a100:2)" in place.refusal("profile.gres='gpu:a100:2'")


def test_what_this_machine_lacks_is_refused(place: Place) -> None:
    place.write("script: train.py\nresources: {cpus: 1, mem: 1MB}\n", "kind: local\n")
    assert place.load().job.resources.cpus == 1
    place.write("script: train.py\nresources:\n  gpus: 9000\n  cpus: 99999\n  mem: 9000000GB\n", "kind: local\n")
    first, second, third = place.refusal().splitlines()
    assert re.fullmatch(r"job.yaml:3:9: resources.gpus: this machine has \d+ GPUs, and the job asks for 9000", first)
    assert "job.yaml:4:9: resources.cpus: this machine has" in second
    assert "job.yaml:5:8: resources.mem: this machine has" in third


def test_mistakes_in_options(place: Place) -> None:
    assert place.refusal("job.lanucher=fork").startswith("--set job.lanucher=fork: 'lanucher' is not a field; did you")
    assert place.refusal("job.env.A.b=1").startswith("--set job.env.A.b=1: env.A: expected text, found a mapping")
    assert place.refusal("job.args=[a").startswith("--set job.args=[a: not valid YAML")
    assert place.refusal("job.args=!!x [a]").startswith("--set job.args=!!x [a]: the tag")
    assert "the value is empty" in place.refusal("job.name=")
    assert "nodes is not a job field\nwrite --nodes 3" in place.refusal("nodes=3")
    assert "did you mean --set job.args=...?" in place.refusal("args=3")
    for text in ("job.args", "job=3", "job.=3", "=3", "", "job..a=3", "x.y=3"):
        assert "the option can't be read" in place.refusal(text)
    assert place.refusal(profile__nodes=0).startswith("profile.nodes (command line): expected at least 1")


def test_ten_problems_are_listed_in_the_order_of_the_file(place: Place) -> None:
    place.write("script: train.py\n" + "".join(f"x{i}: 1\n" for i in range(14)), "kind: local\n")
    lines = place.refusal().splitlines()
    assert [line.split(":")[1] for line in lines[:10]] == [str(i) for i in range(2, 12)]
    assert lines[10:] == ["and 4 more"]


def test_a_message_is_one_short_line_whatever_the_value(place: Place) -> None:
    place.write('script: train.py\nlimits: {join: "\\e[31m\\n' + "x" * 5000 + '"}\n', "kind: local\n")
    assert place.refusal().startswith(r"job.yaml:2:16: limits.join: '\x1b[31m\nxxx")
    assert len(place.refusal()) < 700


def test_how_many_ranks() -> None:
    hosts = [{"host": "a", "nproc_per_node": 8}, "b", "c"]
    profile = {"kind": "ssh", "name": "p", "hosts": hosts, "nodes": 2}
    for nproc, world in ((4, 12), ([1, 2], 10), ("auto", None)):
        assert world_size(valid(SshProfile, {**profile, "nproc_per_node": nproc})) == world


def test_an_installed_package_brings_its_profiles(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = place.folder / "site" / "orchestrator" / "shipped" / "cluster_profiles"
    shipped.mkdir(parents=True)
    (shipped / "other.yaml").write_text("kind: local\n")
    monkeypatch.setattr(lookup, "__file__", str(shipped.parents[1] / "specs" / "documents" / "lookup.py"))
    assert known_profiles(place.folder) == [("other", shipped / "other.yaml", "shipped with orch")]


def test_kinds(place: Place) -> None:
    for text, message in (
        ("nodes: 2\n", "p.yaml:1:1: kind is missing\nadd a line `kind: KIND`, where KIND is one of local, ssh, slurm"),
        (
            "kind: slrum\n",
            "p.yaml:1:7: kind: expected one of local, ssh, slurm, sge, pbs, found the text 'slrum'; did you mean 'slurm'",
        ),
        ("kind: [ssh]\n", "p.yaml:1:7: kind: expected one of local, ssh, slurm, sge, pbs, found a list"),
    ):
        place.write("script: train.py\n", text)
        assert message in place.refusal()


def test_a_profile_alone_has_its_defaults_checked(place: Place) -> None:
    place.write("", "kind: local\ndefaults: {retry: {infra: 1}, container: {mounts: [a]}}\n")
    with pytest.raises(SpecError, match=r"mounts\[0\]: 'a' is not a mount"):
        load_profile("p.yaml", cwd=place.folder)
    assert load_profile("p.yaml", sets=["profile.defaults.container=null"], cwd=place.folder).name == "p"


def test_where_profiles_are_found(place: Place) -> None:
    assert profile_path("local", place.folder) == ROOT / "cluster_profiles" / "local.yaml"
    own = place.folder / "cluster_profiles" / "local.yaml"
    own.parent.mkdir()
    own.write_text("kind: local\n")
    assert profile_path("local", place.folder) == own
    users = Path(lookup.platformdirs.user_config_dir("orch")) / "profiles" / "mine.yml"
    users.parent.mkdir(parents=True)
    users.write_text("kind: local\n")
    assert profile_path("mine", place.folder) == users
    found = known_profiles(place.folder)
    assert found[0] == ("local", own, "./cluster_profiles")
    assert ("mine", users, "your profiles") in found
    assert ("ssh-3x4", ROOT / "cluster_profiles" / "ssh-3x4.yaml", "shipped with orch") in found


def test_profiles_beside_the_job_are_found_after_the_users_own(place: Place, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    beside = place.folder / "cluster_profiles" / "lab.yaml"
    beside.parent.mkdir()
    beside.write_text("kind: local\n")
    place.write("script: train.py\n", "")
    assert load(place.folder / "job.yaml", "lab", cwd=away).profile_path == beside
    with pytest.raises(UsageError, match="there is no profile 'lab'"):
        profile_path("lab", away)
    assert default_profile("lab", away, {}, place.folder / "lab.yaml").profile == "lab"
    assert default_profile("job", away, {}, place.folder / "job.yaml").profile == "local"  # it is not one's own
    in_jobs = place.folder / "jobs" / "job.yaml"
    assert profile_path("lab", away, in_jobs) == beside
    own = Path(lookup.platformdirs.user_config_dir("orch")) / "profiles" / "lab.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("kind: local\n")
    assert profile_path("lab", away, in_jobs) == own


def test_two_missing_files_are_told_at_once(place: Place) -> None:
    with pytest.raises(UsageError) as caught:
        load("train.yml", "lbo", cwd=place.folder)
    assert caught.value.message == "no such job file: train.yml; there is no profile 'lbo'"
    assert "known profiles:" in caught.value.hint


def test_what_is_not_found_is_suggested(place: Place) -> None:
    for ref, message in (
        ("lcal", "did you mean 'local'?"),
        ("zzz", "known profiles: local, local-2x2"),
        ("./pp.yaml", "did you mean p.yaml?"),
        ("no/such/folder.yaml", "there is no such profile file"),
        ("n/" * 3000, "there is no such profile file"),
    ):
        with pytest.raises(UsageError) as caught:
            profile_path(ref, place.folder)
        assert message in str(caught.value)
    for ref, message in (
        ("jb.yaml", "did you mean job.yaml?"),
        ("helo", "did you mean hello?"),
        ("jobs/hello.yaml", "did you mean hello?"),
        (".", "is not a job"),
        ("n" * 300, "no such job file: nnn"),
        ("n/" * 3000, "no such job file: n/n"),
    ):
        with pytest.raises(UsageError) as caught:
            job_path(ref, place.folder)
        assert message in str(caught.value)


VALID = [(ROOT / "jobs" / "mnist_ddp.yaml").read_text(), (ROOT / "docs" / "job.md").read_text().split("```")[1][5:]]
VALID_PROFILES = [p.read_text() for p in sorted((ROOT / "cluster_profiles").glob("*.yaml"))]


def mutated(text: str, dice: random.Random) -> str:
    for _ in range(dice.randint(1, 4)):
        at, length = dice.randrange(len(text) + 1), dice.randrange(6)
        piece = dice.choice(
            ["", "", ":", " ", "\n", "-", "[", "{", "&a ", "*a", "!!x ", "'", '"', "\t", "0", "é", "null", "#"]
        )
        text = text[:at] + piece + text[at + length :]
    return text


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(VALID), st.sampled_from(VALID_PROFILES))
def test_broken_files_are_never_a_traceback(seed: int, job: str, profile: str) -> None:
    dice = random.Random(seed)
    folder = FUZZ
    (folder / "j.yaml").write_text(mutated(job, dice))
    (folder / "p.yaml").write_text(mutated(profile, dice))
    with contextlib.suppress(UsageError):
        load("j.yaml", "p.yaml", cwd=folder)
    with contextlib.suppress(UsageError):
        load_profile("p.yaml", cwd=folder)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [f"job.{name}" for name in names_of(loading.Job)] + [f"profile.{n}" for n in names_of(SshProfile)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FIELDS), JUNK)
@example("job.training", [])
def test_junk_in_any_field_is_never_a_traceback(field: str, junk: Any) -> None:
    with contextlib.suppress(UsageError):
        load("hello", "ssh-3x4", flags={field: junk}, cwd=ROOT)


@pytest.fixture(autouse=True, scope="module")
def _fuzz_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FUZZ  # noqa: PLW0603
    FUZZ = tmp_path_factory.mktemp("fuzz")


FUZZ = Path()


def test_a_profile_or_job_that_is_hidden_by_another_is_named(place: Place) -> None:
    own = Path(lookup.platformdirs.user_config_dir("orch")) / "profiles"
    for folder in (own, place.folder / "cluster_profiles", place.folder / "jobs"):
        folder.mkdir(parents=True, exist_ok=True)
    for file in (
        own / "lab.yaml",
        place.folder / "cluster_profiles/lab.yml",
        place.folder / "cluster_profiles/local.yaml",
    ):
        file.write_text("kind: local\n")
    (place.folder / "jobs/hello.yaml").write_text("script: x.py\n")

    def hidden(job: str, profile: str) -> list[str]:
        files = job_path(job, place.folder), profile_path(profile, place.folder)
        return hidden_files(job, profile, *files, place.folder)

    shipped = lookup.shipped("jobs").parent
    assert hidden("hello", "lab") == [
        f"jobs/hello.yaml is used, and hides {shipped}/jobs/hello.yaml",
        f"cluster_profiles/lab.yml is used, and hides {own}/lab.yaml",
    ]
    assert hidden("jobs/hello.yaml", "local") == [
        f"cluster_profiles/local.yaml is used, and hides {shipped}/cluster_profiles/local.yaml"
    ]
    assert hidden("jobs/hello.yaml", "cluster_profiles/lab.yml") == []
