"""Ranks in containers of real daemons, one a node, as alice: over SSH and through Slurm; and nothing of them stays."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import signal
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.system.processes import send_signal, wait_gone
from tests import nvml
from tests.cluster.control import Control
from tests.cluster.lab import HELD_AT_FIRST, HOLD, LAPTOP, STEPS, TORCH_STEPS, Lab, kill, settled
from tests.cluster.test_ssh_formats import TRAINER, begun
from tests.patience import PATIENCE
from tests.testbed import docker as daemons
from tests.testbed import images
from tests.testbed.layout import PEOPLE, REPO

pytestmark = pytest.mark.cluster("docker")

NODES = ("n1", "n2", "n3")
ALICE = PEOPLE[0]


def container(image: str, **fields: Any) -> dict[str, Any]:
    """A job's container: the base image, and the tests' interpreter of this machine."""
    mounts = [f"{folder}:{folder}:ro" for folder in images.mounts()]
    return {"image": image, "mounts": mounts, "pull": "never", **fields}


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


@pytest.fixture
def stranger(testbed: Control, image: str) -> Iterator[str]:
    """A container on n1 that is nobody's of orch's: it must outlive every run."""
    testbed.output("n1", "docker", "run", "--detach", "--rm", "--name=stranger", image, "sleep", "600", user="bob")
    yield "stranger"
    testbed.output("n1", "docker", "rm", "--force", "stranger", user="root")


def containers(testbed: Control, host: str) -> list[str]:
    """The names of all containers of a host, running or not."""
    return testbed.output(host, "docker", "ps", "--all", "--format={{.Names}}", user="root").split()


def gone(testbed: Control, *hosts: str) -> None:
    """Wait until no container of orch's is on these hosts, nor a process of alice's that carries a run's mark."""
    settled(lambda: not any(name.startswith("orch-") for host in hosts for name in containers(testbed, host)),
            f"the end of all containers on {hosts}")  # fmt: skip
    settled(lambda: not any(testbed.processes(host, ALICE.name, mark="") for host in hosts if host != LAPTOP),
            f"the end of alice's processes on {hosts}")  # fmt: skip


@pytest.mark.full(
    "tests/cluster/test_containers.py::test_killed_agents_and_clients_leave_no_container_and_no_other_is_touched",
    "tests/cluster/test_ssh.py::test_twelve_ranks_train_while_the_laptop_is_closed_and_everything_is_there_later",
)
def test_twelve_ranks_train_in_containers_on_three_machines(lab: Lab, image: str) -> None:
    profile = lab.profile(nproc_per_node=4, runtime="docker")
    sets = [f"--set={each}" for each in ("job.training.offline_epochs=1", "job.training.eval_every=0")]
    boxed = f"--set=job.container={json.dumps(container(image))}"
    run = lab.submit(str(REPO / "jobs" / "mnist_ddp.yaml"), "--profile", profile, *sets, boxed)
    assert lab.wait(run).code == 0
    state = lab.status(run)
    assert (state["state"], state["world_size"]) == ("succeeded", 12)
    assert len({event["image_id"] for event in lab.events(run, "container")}) == 1
    assert "accuracy" in lab.orch("logs", run).out
    assert "second copy" not in lab.log(run)  # of which rank 0 is told by a file that its container sees
    assert "checksums verified" in lab.orch("checkpoints", run, "--verify").out
    gone(lab.control, *NODES)
    lab.assert_nothing_left(run)


def test_what_a_container_writes_in_beside_and_above_its_folders_comes_home(lab: Lab, image: str) -> None:
    words = "echo weights > $ORCH_OUTPUT_DIR/model.pt; echo 1 > ../log; echo 2 > ../../log; echo 3 > $ORCH_RUN_DIR/x"
    command = ["sh", "-c", words]
    (lab.home / "boxed").mkdir()
    lab.write("boxed/boxed.yaml", json.dumps({"command": command, "container": container(image)}))
    run = lab.submit("boxed/boxed.yaml", "--profile", lab.profile(hosts=["n1"], runtime="docker"))
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    top = lab.home / ".local/state/orch/runs" / run / "outputs"
    found = {str(path.relative_to(top)): path.read_text().strip() for path in top.rglob("*") if path.is_file()}
    assert found == {"model.pt": "weights", "beside/log": "1", "above/log": "2", "beside/x": "3"}
    lab.assert_nothing_left(run)


def test_the_gpus_in_a_container_are_numbered_by_what_is_in_it(testbed: Control, image: str) -> None:
    """On n1, which has three cards for orch, and of which the container has two."""
    folder, home = testbed.file("n1", "/home/alice/nvml"), "/home/alice/nvml"
    folder.mkdir()
    shutil.copy(f"{nvml.library_folder()}/libnvidia-ml.so.1", folder)
    for name, cards in (("node", (0, 1, 2)), ("inside", (1, 2))):
        nvml.describe(folder / name, *map(nvml.card, cards))
    box = container(image)
    box["mounts"].append(f"{home}:{home}:ro")
    variables = {"CUDA_VISIBLE_DEVICES": "2,1", "LD_LIBRARY_PATH": home, "NVML_STUB": f"{home}/inside"}
    command = ["sh", "-c", 'echo "$ORCH_GPUS=$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"']
    (folder / "job").mkdir()
    job = {"command": command, "env": variables, "resources": {"gpus": 2}, "container": box}
    (folder / "job" / "job.yaml").write_text(json.dumps(job))
    place = {"kind": "local", "nproc_per_node": 1, "runtime": "docker", "gpu_flag": "none", "python": sys.executable}
    (folder / "job" / "place.yaml").write_text(json.dumps(place))
    stub = {"LD_LIBRARY_PATH": home, "NVML_STUB": f"{home}/node"}
    words = ("submit", f"{home}/job/job.yaml", "-p", f"{home}/job/place.yaml")
    submitted = testbed.orch(*words, "--no-wait", "--json", host="n1", **stub)
    assert submitted.code == 0, submitted.err
    run = submitted.json["run_id"]
    assert testbed.orch("wait", run, host="n1").code == 0, testbed.orch("why", run, host="n1").out
    assert f"{nvml.uuid(2)},{nvml.uuid(1)}=1,0 PCI_BUS_ID" in testbed.orch("logs", run, host="n1").out


@pytest.mark.soak
@pytest.mark.full(
    "tests/cluster/test_containers.py::test_killed_agents_and_clients_leave_no_container_and_no_other_is_touched",
    "tests/cluster/test_ssh_formats.py::test_another_s_checkpoint_is_listed_pulled_and_sent_to_all_nodes_of_another_run",
)
def test_containers_of_two_machines_go_on_from_another_s_checkpoint(lab: Lab, image: str) -> None:
    profile = lab.profile(hosts=["n1", "n2"], runtime="docker", python=None)
    first = lab.submit(
        lab.job("trainer", TRAINER, launcher="exec", args=["100"], container=container(image)), "-p", profile
    )
    assert lab.wait(first).code == 0, lab.orch("why", first).out
    # Rank 0 is killed after its first save: the next attempt has containers of its own.
    dies = "if os.environ['ORCH_ATTEMPT'] == os.environ['RANK'] == '0':\n    os.kill(os.getpid(), 9)\n"
    again = lab.job("again", TRAINER + dies, launcher="exec", args=["300"], container=container(image))
    run = lab.submit(again, "-p", profile, "--resume", first)
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert (begun(lab, run), begun(lab, run, 1)[-1]) == ([100, 300], 300)


@pytest.mark.full(
    "tests/cluster/test_containers.py::test_killed_agents_and_clients_leave_no_container_and_no_other_is_touched",
)
def test_a_cancel_on_one_machine_reaches_the_ranks_in_their_container(lab: Lab, image: str) -> None:
    """The local backend, with n1 as alice's own machine."""
    home = lab.control.file("n1", "/home/alice")
    (home / "steps").mkdir()
    (home / "steps/main.py").write_text(STEPS)
    (home / "steps/steps.yaml").write_text(
        json.dumps({"script": "main.py", "launcher": "exec", "args": ["600", "0.1"], "container": container(image)})
    )
    (home / "own.yaml").write_text(
        json.dumps({"kind": "local", "nproc_per_node": 2, "runtime": "docker", "python": sys.executable})
    )

    def orch(*args: str) -> Any:
        return lab.control.orch(*args, host="n1")

    run = orch("submit", "steps/steps.yaml", "--profile", "own.yaml", "--json").json["run_id"]
    folder = home / ".local/state/orch/runs" / run
    settled(lambda: list(folder.glob("checkpoints/step_*/COMMIT")), "a checkpoint")
    assert orch("cancel", run).code == 0
    assert orch("status", run, "--json").json["state"] == "cancelled"
    assert [path for path in folder.rglob("*") if path.lstat().st_uid != ALICE.uid] == []
    ends = [json.loads(line) for line in (folder / "nodes/0/events.jsonl").read_text().splitlines()]
    assert {event["code"] for event in ends if event["kind"] == "rank_exit"} == {
        95
    }  # stopped at a step, with a checkpoint
    assert containers(lab.control, "n1") == []


@dataclass(frozen=True)
class Cluster:
    """Alice on the login node, with a Slurm profile that trains in containers."""

    testbed: Control
    home: str = "/shared/alice"

    def write(self, name: str, values: Any) -> str:
        """A file of hers, as JSON, which is YAML, or as it is."""
        self.testbed.output("ctl", "mkdir", "-p", self.home)
        text = values if isinstance(values, str) else json.dumps(values)
        self.testbed.output("ctl", "tee", f"{self.home}/{name}", stdin=text)
        return f"{self.home}/{name}"

    def profile(self, **fields: Any) -> str:
        values = {"kind": "slurm", "nodes": 3, "runtime": "docker", "python": sys.executable, "time": 600}
        return self.write("cluster.yaml", {**values, **fields})

    def orch(self, *args: str) -> Any:
        return self.testbed.orch(*args, ORCH_HOME=f"{self.home}/orch")

    def submit(self, *args: str) -> str:
        done = self.orch("submit", *args, "--json")
        assert done.code == 0, done.err
        return str(done.json["run_id"])


@pytest.mark.cluster("slurm", "docker")
@pytest.mark.full(
    "tests/cluster/test_containers.py::test_killed_agents_and_clients_leave_no_container_and_no_other_is_touched",
    "tests/cluster/test_containers.py::test_a_container_has_what_slurm_gave_the_job_and_goes_with_it",
)
def test_twelve_ranks_train_in_containers_of_a_slurm_job(testbed: Control, image: str) -> None:
    alice = Cluster(testbed)
    sets = [f"--set={each}" for each in ("job.training.offline_epochs=1", "job.training.eval_every=0")]
    boxed = f"--set=job.container={json.dumps(container(image))}"
    job, profile = str(REPO / "jobs" / "mnist_ddp.yaml"), alice.profile(nproc_per_node=4, cpus_per_task=4)
    run = alice.submit(job, "--profile", profile, *sets, boxed)
    ended = alice.orch("wait", run)
    assert ended.code == 0, alice.orch("why", run).out
    state = alice.orch("status", run, "--json").json
    assert (state["state"], state["world_size"]) == ("succeeded", 12)
    gone(testbed, *NODES)
    files = testbed.file("ctl", f"{alice.home}/orch/runs/{run}").rglob("*")
    assert {path.lstat().st_uid for path in files} == {ALICE.uid}


@pytest.mark.cluster("slurm", "docker")
def test_a_container_has_what_slurm_gave_the_job_and_goes_with_it(testbed: Control, image: str) -> None:
    alice = Cluster(testbed)
    alice.write("main.py", HOLD)
    job = alice.write(
        "hold.yaml", {"script": "main.py", "launcher": "exec", "container": container(image), "retry": {"infra": 0}}
    )
    run = alice.submit(job, "--profile", alice.profile(nodes=1, nproc_per_node=1, cpus_per_task=1))
    said = testbed.file("ctl", f"{alice.home}/orch/runs/{run}/nodes/0/attempt_0/rank_0.log")
    settled(lambda: said.exists() and "holding" in said.read_text(), "the rank")
    host = next(host for host in NODES if containers(testbed, host))
    given = json.loads(testbed.output(host, "docker", "inspect", f"orch-{run}-0-0"))[0]["HostConfig"]
    assert given["NanoCpus"] == 10**9  # the container is outside of the job's own limits
    testbed.output("ctl", "scancel", "--signal=KILL", f"--user={ALICE.name}")  # no agent can do anything about it
    gone(testbed, host)
    assert alice.orch("wait", run).code in (100, 103)


def refused(lab: Lab, *args: str, **values: Any) -> str:
    """What a submit says that is refused before anything has started."""
    job = lab.job("hold", HOLD, launcher="exec", container=values)
    done = lab.orch("submit", job, "--profile", lab.profile(runtime="docker"), "--json", *args)
    assert done.code == 1, done.out
    return done.err


def test_what_is_wrong_with_a_node_or_an_image_is_one_sentence_before_the_gang_starts(lab: Lab, image: str) -> None:
    control = lab.control
    with stopped(control, "n2"), closed(control, "n3"):
        said = refused(lab, **container(image))
        assert "n2: its docker daemon does not answer: start it there" in said
        assert "n3: alice may not use its docker daemon: add alice to the group docker there" in said
        checks = control.orch("doctor", "--profile", "lab.yaml", "--json").json
        assert {(each["host"], each["level"]) for each in checks if each["what"] == "runtime"} == {
            ("n1", "ok"), ("n2", "fail"), ("n3", "fail"),
        }  # fmt: skip
    with full(control, "n1"):
        assert "n1: the disk of docker's /srv/docker is full (" in refused(lab, **container(image))
    foreign = "arm64v8/python:3"
    load_empty(control, "n1", foreign, "arm64")
    said = refused(lab, image=foreign, pull="never", mounts=["/nowhere/data:/data"])
    assert all(f"{host}: the host has no /nowhere/data, which the job mounts as /data" in said for host in NODES)
    said = refused(lab, image=foreign, pull="never")
    assert f"n1: the image {foreign} is built for arm64, but this machine is amd64" in said
    assert f"n2: the host has no image {foreign}, and `container.pull` is never: pull or load the image there" in said
    said = refused(lab, image="127.0.0.1:1/nothing:1")
    assert "n3: the host has no image 127.0.0.1:1/nothing:1 and can't pull it: " in said
    assert [containers(control, host) for host in NODES] == [[], [], []]


def load_empty(control: Control, host: str, name: str, architecture: str) -> None:
    """Give the host's daemon an image without files, for that kind of processor."""
    layer = b"\0" * 1024
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = json.dumps({"architecture": architecture, "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    path = control.file(host, "/tmp/empty.tar")
    with tarfile.open(path, "w") as tar:
        for member, content in (("manifest.json", manifest), ("config.json", config), ("layer.tar", layer)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    control.output(host, "docker", "load", "--quiet", "--input=/tmp/empty.tar", user="root")
    path.unlink()


@contextlib.contextmanager
def stopped(control: Control, host: str) -> Iterator[None]:
    """The host without its Docker daemon, which was asked to go."""
    end_daemon(control, host, signal.SIGTERM)
    try:
        yield
    finally:
        daemons.start(control.cluster, host)
        daemons.wait_answering(control.cluster, host)


def end_daemon(control: Control, host: str, number: int) -> None:
    of_daemon = [each for each in control.processes(host, "root") if each.command == "dockerd"]
    assert of_daemon
    for each in of_daemon:
        send_signal(each, number)
    assert wait_gone(of_daemon, PATIENCE) == []


@contextlib.contextmanager
def full(control: Control, host: str) -> Iterator[None]:
    """The host with a few MiB left where its images lie."""
    used = int(control.output(host, "df", "--output=used", "/srv/docker", user="root").split()[-1])
    control.output(host, "mount", "-o", f"remount,size={used + 9000}k", "/srv/docker", user="root")
    try:
        yield
    finally:
        control.output(host, "mount", "-o", "remount,size=50%", "/srv/docker", user="root")


@contextlib.contextmanager
def closed(control: Control, host: str) -> Iterator[None]:
    """The host with a Docker daemon that answers root alone."""
    control.output(host, "chmod", "600", "/run/docker.sock", user="root")
    try:
        yield
    finally:
        control.output(host, "chmod", "660", "/run/docker.sock", user="root")


@pytest.mark.full(
    "tests/cluster/test_containers.py::test_what_is_wrong_with_a_node_or_an_image_is_one_sentence_before_the_gang_starts",
)
def test_nodes_with_different_images_of_one_name_do_not_start(lab: Lab, image: str) -> None:
    for host, content in (("n1", image), ("n2", image)):
        lab.control.output(host, "docker", "tag", content, "mine:1")
    lab.control.output(
        "n2", "sh", "-c", f"printf 'FROM {image}\\nLABEL other=1\\n' | docker build --quiet --tag=mine:1 -"
    )
    job = lab.job("hold", HOLD, launcher="exec", container=container("mine:1"), retry={"infra": 0})
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"], runtime="docker"))
    assert lab.wait(run).code == 100
    why = lab.orch("why", run).out
    assert re.search(r"node 1 \(n2\): its mine:1 is [0-9a-f]{12}, and the other nodes have [0-9a-f]{12}", why), why
    assert "holding" not in lab.log(run)
    gone(lab.control, "n1", "n2")


def test_killed_agents_and_clients_leave_no_container_and_no_other_is_touched(
    lab: Lab, image: str, stranger: str
) -> None:
    canary = "canary-5d41402abc4b2a76b9719d911017c592"
    job = lab.job(
        "hold", HOLD, launcher="exec", container=container(image), retry={"infra": 0}, secrets=["TOKEN_OF_MINE"]
    )
    run = lab.submit(job, "--profile", lab.profile(runtime="docker"), TOKEN_OF_MINE=canary)
    lab.until_said(run, "holding")
    for host in NODES:
        settled(lambda host=host: f"orch-{run}-" in " ".join(containers(lab.control, host)), f"a container on {host}")
    inspected = json.loads(lab.control.output("n2", "docker", "inspect", f"orch-{run}-1-0"))[0]
    lab.until(run, "container", len(NODES))  # node 0's is known first
    assert inspected["Id"] in {event["id"] for event in lab.events(run, "container")}
    assert inspected["HostConfig"]["NetworkMode"] == inspected["HostConfig"]["IpcMode"] == "host"
    assert inspected["HostConfig"]["CapDrop"] == ["ALL"]
    assert inspected["Config"]["User"] == f"{ALICE.uid}:{ALICE.uid}"
    shown = [Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in lab.control.processes("n2", ALICE.name)]
    assert canary not in json.dumps(inspected)
    assert not any(canary.encode() in words for words in shown)
    # All at one moment: once n1's agent is gone the others end, and n2's client with them.
    kill([*lab.agents("n1"), *lab.docker_clients("n2")])
    assert lab.wait(run).code == 100
    gone(lab.control, *NODES[1:])
    settled(lambda: containers(lab.control, "n1") == [stranger], "the end of the container on n1")
    lab.assert_nothing_left(run)


HELD_TORCH = TORCH_STEPS.replace(
    "time.sleep(pause)", "time.sleep(pause if step < 12 or os.environ['ORCH_ATTEMPT'] != '0' else 3)"
)


def ended_by(*variants: tuple[str, int, str]) -> list[Any]:
    """The first of these variants belongs to `make test`, and the others repeat it."""
    later = pytest.mark.full(
        "tests/cluster/test_containers.py::test_a_container_that_is_ended_is_blamed_and_no_rank_that_lost_it",
        "tests/simulator/test_gangs.py::test_every_story_ends_as_it_must",
    )
    return [pytest.param(*each, marks=() if number == 0 else later) for number, each in enumerate(variants)]


@pytest.mark.parametrize(
    ("how", "node", "program"),
    ended_by(
        ("kill", 0, HELD_AT_FIRST), ("rm --force", 0, HELD_AT_FIRST), ("stop --time 1", 0, HELD_AT_FIRST),
        ("kill", 1, HELD_AT_FIRST), ("rm --force", 1, HELD_AT_FIRST), ("stop --time 1", 1, HELD_AT_FIRST),
        ("kill", 0, HELD_TORCH), ("rm --force", 1, HELD_TORCH), ("stop --time 1", 0, HELD_TORCH),
    ),
)  # fmt: skip
def test_a_container_that_is_ended_is_blamed_and_no_rank_that_lost_it(
    lab: Lab, image: str, how: str, node: int, program: str
) -> None:
    """The other node's rank reports a broken connection before the agent of the container knows of its end."""
    job = lab.job("steps", program, args=["16", "0.1"], container=container(image))
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"], runtime="docker"))
    lab.until(run, "collected")  # a checkpoint
    lab.control.output(NODES[node], "docker", *how.split(), f"orch-{run}-{node}-0", user="root")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    (failed,) = lab.events(run, "attempt_failed")
    assert (failed["cause"], failed["culprit"]["node"]) == ("infra", node), failed
    assert failed["culprit"]["error"]["type"] == "LauncherLost"
    assert lab.status(run)["restarts"] == 1


@pytest.mark.full(
    "tests/cluster/test_containers.py::test_killed_agents_and_clients_leave_no_container_and_no_other_is_touched",
)
def test_a_daemon_that_restarts_and_a_machine_that_crashes_leave_no_container(lab: Lab, image: str) -> None:
    job = lab.job("hold", HOLD, launcher="exec", container=container(image), retry={"infra": 0})
    run = lab.submit(job, "--profile", lab.profile(runtime="docker"))
    lab.until_said(run, "holding")
    lab.control.crash("n3")
    with stopped(lab.control, "n2"):
        pass
    assert lab.wait(run).code == 100
    lab.control.boot("n3")
    gone(lab.control, *NODES)
    assert lab.orch("gc", "--profile", "lab.yaml").code == 0
    assert [lab.of_run(run, host) for host in NODES] == [[], [], []]


# What a container might do to the agent, told on its first line; it fails the first time, and ends well the second.
ATTACKS = """
import json, os, sys
run, attempt = os.environ["ORCH_RUN_DIR"], int(os.environ["ORCH_ATTEMPT"])
node = f"{run}/nodes/0"

def attempted(attack):
    try:
        attack()
        return "done"
    except OSError as error:
        return error.strerror

attacks = {
    "append to the archive": lambda: open(f"{run}/node.pyz", "ab").close(),
    "replace the archive": lambda: (open(f"{run}/own", "w").close(), os.replace(f"{run}/own", f"{run}/node.pyz")),
    "remove the archive": lambda: os.unlink(f"{run}/node.pyz"),
    "change the code": lambda: open("main.py", "ab").close(),
    "write a record": lambda: open(f"{node}/events.jsonl", "a").close(),
    "lay a link": lambda: os.symlink("/", f"{node}/agent.json"),
    "make the next attempt's folder": lambda: os.mkdir(f"{node}/attempt_{attempt + 1}"),
    "cancel": lambda: open(f"{run}/cancel.json", "w").close(),
}
seen = sorted(os.path.relpath(path, run) for path, *_ in os.walk(run))
print(json.dumps({"seen": seen, **{name: attempted(attack) for name, attack in attacks.items()}}), flush=True)
open(os.environ["ORCH_METRICS_FILE"], "a").write(json.dumps({"kind": "train", "step": attempt, "loss": 1.0}) + "\\n")
json.dump({"attempt": attempt}, open(os.environ["ORCH_RESULT_FILE"], "w"))
own = f"{node}/attempt_{attempt}"
for name in ("rank_7.log", "rank_8.log.1", "error_7.json", "flight_7", "stacks_7.txt", "result_7.json"):
    os.symlink("/home/alice/private", f"{own}/{name}")  # a file of the host, which is not in the container
os.mkfifo(f"{own}/beat_7")
os.mkfifo(f"{own}/rank_9.log")
sys.exit(attempt == 0)
"""
ROOT = {"user": "0:0", "cap_add": ["DAC_OVERRIDE"]}  # whose own files in the container are nobody's outside


@pytest.mark.parametrize("extra", [{}, ROOT], ids=["alice", "root"])
def test_a_container_reaches_nothing_that_its_agent_acts_on(lab: Lab, image: str, extra: dict[str, Any]) -> None:
    """The container sees a folder of its own in place of the run's, in which it may write as it likes."""
    job = lab.job("attacks", ATTACKS, launcher="exec", container=container(image, **extra), retry={"user_error": 1})
    lab.control.output("n1", "sh", "-c", "echo SECRET > ~/private", user=ALICE.name)
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1"], runtime="docker"))
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    said = [json.loads(line) for line in lab.log(run).splitlines() if line.startswith("{")]
    for attempt, found in enumerate(said):
        attempts = [f"nodes/0/attempt_{number}" for number in range(attempt + 1)]
        assert found.pop("seen") == [
            ".", "checkpoints", "code", "nodes", "nodes/0", *attempts, "nodes/0/compiled", "outputs"
        ]  # fmt: skip
        assert found == {
            "append to the archive": "Read-only file system",
            "replace the archive": "Device or resource busy", "remove the archive": "Device or resource busy",
            "change the code": "done",  # this run's copy of it, and only containers run that
            "write a record": "done", "lay a link": "File exists" if attempt else "done",
            "make the next attempt's folder": "done", "cancel": "done",
        }  # fmt: skip
    assert len(said) == 2
    assert len({event["id"] for event in lab.events(run, "container")}) == 2  # each attempt has its own
    folder = lab.home / ".local/state/orch/runs" / run
    assert json.loads((folder / "result.json").read_text()) == {"attempt": 1}
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [0, 1]
    assert not list(folder.glob("nodes/0/attempt_2"))
    shown = [lab.orch(*words).out for words in (("logs", run, "--all"), ("why", run), ("events", run))]
    kept = [path for path in folder.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    assert (kept, [text for text in shown if "SECRET" in text]) == ([], [])
    gone(lab.control, "n1")
    lab.assert_nothing_left(run, ("n1",))


def test_gc_ends_a_container_that_was_left_behind_and_keeps_that_of_a_live_run(lab: Lab, image: str) -> None:
    job = lab.job("hold", HOLD, launcher="exec", container=container(image))
    profile = lab.profile(hosts=["n1"], runtime="docker")
    live = lab.submit(job, "--profile", profile)
    lab.until_said(live, "holding")
    old = lab.submit(lab.job("short", "print(1)\n", launcher="exec", container=container(image)), "--profile", profile)
    assert lab.wait(old).code == 0
    labels = [f"--label=io.github.orch.{name}" for name in (f"run={old}", f"uid={ALICE.uid}", "node=0", "dir=/none")]
    lab.control.output("n1", "docker", "run", "--detach", "--name=left", *labels, image, "sleep", "600", user="root")
    rows = lab.orch("gc", "--profile", profile).out
    assert f"its run {old} has ended" in rows
    assert containers(lab.control, "n1") == [f"orch-{live}-0-0"]
    assert lab.orch("cancel", live, "--now").code == 0
    gone(lab.control, "n1")
    lab.assert_nothing_left(live, ("n1",))
