"""Slurm through its login node, from a laptop that has none of Slurm's programs."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.control import Control, Result
from tests.cluster.lab import DIALLED, HELD_AT_FIRST, STEPS, Lab
from tests.cluster.test_ssh_formats import TRAINER
from tests.cluster.test_terminal import JOB, KEY, RANK
from tests.patience import PATIENCE
from tests.terminal import terminal
from tests.testbed.machine import ENVIRONMENT, wait_until
from tests.testbed.sshd import SECOND_FACTOR

pytestmark = pytest.mark.cluster("slurm", nodes=4)

LAPTOP = "n4"  # a host of the testbed whose programs of Slurm are hidden, and on which no job is started
PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sacct", "sinfo")
SHARED = "/shared/alice-login"


@dataclass(frozen=True)
class Laptop:
    """alice at a machine of hers that knows the cluster's login node, ctl, and nothing else of it."""

    testbed: Control

    def orch(self, *args: str, **options: Any) -> Result:
        return self.testbed.orch(*args, host=LAPTOP, **{"timeout": 2 * PATIENCE, **options})

    def write(self, name: str, text: str) -> str:
        """A file of hers in a folder of its own, which is what is sent as the code."""
        folder = self.testbed.file(LAPTOP, "/home/alice/job")
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return f"job/{name}"

    def profile(self, name: str = "far.yaml", **fields: Any) -> str:
        values = {"kind": "slurm", "login": "alice@ctl", "workdir": SHARED, "nodes": 2, "nproc_per_node": 1,
                  "exclude": LAPTOP, "time": "1h", "python": sys.executable}  # fmt: skip
        return self.write(name, json.dumps({**values, **fields}))

    def submit(self, *args: str, **options: Any) -> str:
        done = self.orch("submit", *args, "--json", **options)
        assert done.code == 0, done.err
        return str(done.json["run_id"])

    def status(self, run: str) -> dict[str, Any]:
        return dict(self.orch("status", run, "--json").json)

    def text(self, run: str, name: str) -> str:
        """A file of the run as the laptop has it; empty where it has none."""
        path = self.testbed.file(LAPTOP, f"/home/alice/.local/state/orch/runs/{run}/{name}")
        return path.read_text() if path.exists() else ""

    def wait_for(self, run: str, words: str, name: str = "nodes/0/attempt_0/rank_0.log") -> None:
        wait_until(lambda: words in self.text(run, name), f"'{words}' in {name} of {run}")

    def left(self, run: str) -> list[str]:
        """What is left of an ended run: processes on any host, its job in the queue, its folder on the login node."""
        hosts = self.testbed.cluster.hosts
        marked = [f"{each.command} on {host}" for host in hosts for each in self.testbed.processes(host, "alice", run)]
        queued = self.testbed.output("ctl", "squeue", "--noheader", f"--name={run}").splitlines()
        folder = self.testbed.file("ctl", f"{SHARED}/runs/{run}")
        return [*marked, *queued, *map(str, folder.rglob("*"))]


@pytest.fixture
def laptop(testbed: Control) -> Laptop:
    testbed.output(LAPTOP, "install", "-m", "644", "/dev/null", "/srv/nothing", user="root")
    for path in filter(None, map(shutil.which, PROGRAMS)):
        testbed.output(LAPTOP, "mount", "--bind", "/srv/nothing", path, user="root")
        testbed.undo.callback(testbed.output, LAPTOP, "umount", path, user="root")
    return Laptop(testbed)


def test_a_run_is_submitted_followed_requeued_and_brought_home(laptop: Laptop) -> None:
    laptop.testbed.file("ctl", "/home/alice/.bashrc").write_text(DIALLED)
    writes = "open('model.pt', 'w').write('w')\nopen(os.environ['ORCH_OUTPUT_DIR'] + '/x', 'w').write('x')\n"
    laptop.write("main.py", HELD_AT_FIRST + writes + "print('secret of', len(os.environ['TOKEN']))\n")
    named = laptop.write("job.yaml", '{"script": "main.py", "launcher": "exec", "args": [60, 0], "secrets": ["TOKEN"]}')
    run = laptop.submit(named, "-p", laptop.profile(), TOKEN="swordfish")  # noqa: S106 (not one)
    note = laptop.status(run)["detail"]
    assert "Slurm job" in note or laptop.status(run)["state"] != "pending"
    wait_until(lambda: list_of_steps(laptop, run), "a checkpoint on the laptop")
    job = laptop.testbed.output("ctl", "squeue", "--noheader", "--format=%i", f"--name={run}")
    laptop.testbed.output("ctl", "scontrol", "requeue", job)
    assert laptop.orch("wait", run).code == 0, laptop.orch("why", run).out
    state = laptop.status(run)
    assert (state["state"], state["restarts"], state["world_size"]) == ("succeeded", 1, 2)
    assert {node["host"] for node in state["nodes"]} <= {"n1", "n2", "n3"}
    again = laptop.text(run, "nodes/0/attempt_1/rank_0.log")
    assert "rank 0 begins at 0" not in again
    assert "weights" in again
    assert "secret of 9" in again
    assert "rank 1 begins at" in laptop.orch("logs", run, "--rank", "1").out
    found = laptop.orch("checkpoints", run, "--verify", "--json").json
    assert [(each["format"], each["step"]) for each in found[-2:]] == [("orch", 60), ("files", None)]
    assert {each["verdict"] for each in found} == {"ok"}
    assert laptop.text(run, f"slurm/agent.{job}.1.0.log")
    assert [laptop.text(run, f"outputs/{name}") for name in ("model.pt", "x")] == ["w", "x"]
    assert [each["path"] for each in laptop.orch("outputs", run, "--json").json["files"]] == ["model.pt", "x"]
    assert laptop.left(run) == []
    assert laptop.testbed.run(LAPTOP, "grep", "-r", "swordfish", ".local").code == 1
    assert laptop.testbed.file("ctl", "/home/alice/dialled").read_text() == "one\n"


@pytest.mark.soak
@pytest.mark.full(
    "tests/cluster/test_slurm_login.py::test_a_run_is_submitted_followed_requeued_and_brought_home",
    "tests/cluster/test_ssh_formats.py::test_another_s_checkpoint_is_listed_pulled_and_sent_to_all_nodes_of_another_run",
)
def test_another_s_checkpoint_outlives_a_requeue_and_is_sent_to_the_cluster_again(laptop: Laptop) -> None:
    laptop.write("main.py", TRAINER)
    job = {"script": "main.py", "launcher": "exec", "args": ["300", "requeue"]}
    run = laptop.submit(laptop.write("job.yaml", json.dumps(job)), "-p", laptop.profile())
    assert laptop.orch("wait", run).code == 0, laptop.orch("why", run).out
    for attempt, begins in enumerate((0, 100, 200, 300)):
        assert f"begins at {begins}\n" in laptop.text(run, f"nodes/0/attempt_{attempt}/rank_0.log")
    assert "begins at 300\n" in laptop.text(run, "nodes/1/attempt_3/rank_1.log")
    assert [each["step"] for each in laptop.orch("checkpoints", run, "--json").json] == [100, 200, 300]
    job["args"] = ["300"]
    again = laptop.submit(laptop.write("job.yaml", json.dumps(job)), "-p", laptop.profile(), "--resume", f"{run}:200")
    assert laptop.orch("wait", again).code == 0, laptop.orch("why", again).out
    for rank in range(2):
        assert "begins at 200\n" in laptop.text(again, f"nodes/{rank}/attempt_0/rank_{rank}.log")
    assert laptop.left(again) == []
    # As the login node's sacct has it, some moments late.
    wait_until(lambda: laptop.orch("usage", again, "--json").json[0]["job"], "the job in the accounting")


def list_of_steps(laptop: Laptop, run: str) -> list[str]:
    """The checkpoints that have been brought to the laptop."""
    folder = laptop.testbed.file(LAPTOP, f"/home/alice/.local/state/orch/runs/{run}/checkpoints")
    return sorted(path.parent.name for path in folder.glob("step_*/COMMIT"))


def test_an_interpreter_below_the_home_folder_trains(laptop: Laptop) -> None:
    for host in ("ctl", "n1", "n2", "n3"):
        folder = laptop.testbed.file(host, "/home/alice/venv/bin")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "python").symlink_to(sys.executable)
    named = laptop.write("hello.yaml", "module: this\nlauncher: exec\n")
    run = laptop.submit(named, "-p", laptop.profile(python="~/venv/bin/python"))
    assert laptop.orch("wait", run).code == 0, laptop.orch("why", run).out
    assert "Beautiful is better" in laptop.text(run, "nodes/0/attempt_0/rank_0.log")


def test_a_login_node_out_of_reach_ends_nothing_and_a_cancel_is_proved(laptop: Laptop) -> None:
    named = laptop.write("hold.yaml", 'command: [sh, -c, "echo holding; exec sleep 600"]\nlimits: {grace: 5s}\n')
    run = laptop.submit(named, "-p", laptop.profile(python="python3"))
    laptop.wait_for(run, "holding")
    wait_until(lambda: laptop.status(run)["state"] == "running", "the run")
    laptop.testbed.cut(LAPTOP)
    lost = "the loss of the login node"  # in the middle of two questions to Slurm, for each of which it is waited
    wait_until(lambda: "can't be asked" in (laptop.status(run)["detail"] or ""), lost)
    assert laptop.status(run)["state"] == "running"
    laptop.testbed.heal(LAPTOP)
    wait_until(lambda: "can't be asked" not in (laptop.status(run)["detail"] or ""), "the login node")
    done = laptop.orch("cancel", run)
    assert done.code == 0, done.err
    assert "0 processes left" in done.out + done.err
    assert laptop.status(run)["state"] == "cancelled"
    assert laptop.left(run) == []


@pytest.mark.full(
    "tests/cluster/test_slurm_login.py::test_a_run_is_submitted_followed_requeued_and_brought_home",
    "tests/cluster/test_terminal.py::test_over_ssh_a_shell_and_a_rank_once_more_on_their_node",
)
def test_a_shell_a_rank_once_more_and_runs_that_wait_for_another(laptop: Laptop) -> None:
    laptop.write("main.py", RANK)
    named = laptop.write("hold.yaml", json.dumps({"script": "main.py", "limits": {"grace": "5s"}, **JOB}))
    hello = laptop.write("hello.yaml", "command: [hostname]\n")
    run = laptop.submit(named, "-p", laptop.profile(), KEY=KEY)
    vain, anyhow = (laptop.submit(hello, "-p", laptop.profile(), "--after", f"{run}:{how}") for how in ("ok", "any"))
    squeue = ("squeue", "--noheader", "--format=%E", f"--name={vain},{anyhow}", "--sort=i")
    waits = [line.partition(":")[0] for line in laptop.testbed.output("ctl", *squeue).split()]
    assert waits == ["afterok", "afterany"]
    assert f"waits for {run} to succeed; Slurm job " in laptop.status(vain)["detail"]
    wait_until(lambda: laptop.status(run)["state"] == "running", "rank 1")
    host = laptop.status(run)["nodes"][1]["host"]
    assert laptop.orch("shell", run, "--node", "1", "--", "hostname").out == f"{host}\n"
    argv = laptop.testbed.argv(LAPTOP, *Lab(laptop.testbed).argv("shell", run, "--node", "1"), TERM="dumb")
    with terminal(argv, ENVIRONMENT) as screen:
        screen.until("the run continues")
        screen.type("tty; hostname; exit 7\n")
        assert (screen.code(), f"\n{host}\n" in screen.text, "/dev/pts/" in screen.text) == (7, True, True)
    done = laptop.orch("replay", run, "--rank", "1", KEY=KEY)
    said = json.loads(next(line for line in done.out.splitlines() if line.startswith("{")))
    assert (done.code, said["host"], said["MODE"], said["key"]) == (17, host, "x y", len(KEY))
    assert laptop.orch("cancel", run).code == 0
    refused = laptop.orch("shell", run)
    assert (refused.code, "has ended, and its nodes are not the run's any more" in refused.err) == (1, True)
    assert (laptop.orch("wait", anyhow).code, laptop.orch("wait", vain).code) == (0, 103)
    assert f"{run}, after which it was to start, was cancelled" in laptop.orch("why", vain).out
    assert [laptop.left(each) for each in (run, vain, anyhow)] == [[], [], []]
    assert f"{run}." not in laptop.testbed.output("ctl", "ls", f"{SHARED}/runs")


def test_what_stands_in_the_way_is_one_clear_message(laptop: Laptop) -> None:
    named = laptop.write("hello.yaml", "command: [hostname]\n")
    for fields, words in (
        ({"login": None}, "there is no sbatch, srun, squeue, scancel on this machine"),
        ({"login": "alice@nowhere"}, "nowhere: no such host"),
        ({"partition": "nowhere"}, "Slurm has no partition 'nowhere'"),
        ({"python": "/no/python"}, "the training interpreter /no/python can't be started"),
    ):
        done = laptop.orch("submit", named, "-p", laptop.profile(**fields))
        assert (done.code, done.out) == (1, ""), done.err
        assert words in done.err
        assert len(done.err.splitlines()) <= 2
    assert laptop.orch("status", "--json").json == []
    assert laptop.testbed.output("ctl", "squeue", "--noheader") == ""


def test_doctor_nodes_and_check_ask_the_login_node(laptop: Laptop) -> None:
    where = laptop.profile()
    done = laptop.orch("doctor", "-p", where, "--on-node")
    assert (done.code, "all checks passed" in done.out) == (0, True), done.out
    assert "short      " in laptop.orch("nodes", "-p", where).out
    apart = laptop.orch("doctor", "-p", laptop.profile("apart.yaml", workdir="~/apart"), "--on-node")
    assert apart.code == 1
    assert "/home/alice/apart/runs is not the same folder on " in apart.out
    nowhere = laptop.orch("doctor", "-p", laptop.profile("nowhere.yaml", python="python9"))
    assert (nowhere.code, "the training interpreter python9 can't be started" in nowhere.out) == (1, True), nowhere.out
    named = laptop.write("hello.yaml", "command: [hostname]\n")
    checked = laptop.orch("submit", named, "-p", where, "--dry-run", "--check")
    assert (checked.code, "Slurm would start it at 20" in checked.out) == (0, True), checked.err
    short = laptop.orch("submit", named, "-p", where, "--dry-run", "--check", "--json", "--nodes", "9")
    assert (short.code, short.json["check"]["level"]) == (1, "fail"), short.err


POINT = """
import json, os, sys, time
where = os.environ["ORCH_OUTPUT_DIR"] if os.environ["POINT"] == "5" else "."
if os.environ["RANK"] == "0":
    open(f"{where}/model.txt", "w").write(os.environ["POINT"])
    with open(os.environ["ORCH_RESULT_FILE"], "w") as file:
        json.dump({"accuracy": int(os.environ["POINT"]) / 10}, file)
print("point", os.environ["POINT"], "rank", os.environ["RANK"], "token of", len(os.environ["TOKEN"]), flush=True)
if os.environ["POINT"] == "7":
    if os.environ["RANK"] == "1":
        open("said", "w").close()
    else:
        while not os.path.exists("said"):  # the failure of rank 0 ends rank 1, which is to say its line first
            time.sleep(0.05)
        os.unlink("said")
        sys.exit(3)
"""


def test_a_sweep_is_one_array_there_and_nothing_of_it_stays(laptop: Laptop) -> None:
    laptop.write("point.py", POINT)
    job = {"script": "point.py", "launcher": "exec", "secrets": ["TOKEN"]}
    named, far = laptop.write("job.yaml", json.dumps(job)), laptop.profile()
    asked = ("-p", far, "--sweep", "job.env.POINT=3,9,7,5", "--parallel", "2")
    done = laptop.orch("submit", named, *asked, TOKEN="swordfish")  # noqa: S106 (not one)
    assert done.code == 0, done.err
    sweep = done.out.strip()
    shared = laptop.testbed.file("ctl", f"{SHARED}/sweeps/{sweep}")
    assert "#SBATCH --array=0-3%2\n" in (shared / "slurm/submission.sh").read_text()
    archives = {laptop.testbed.file("ctl", f"{SHARED}/runs/{sweep}.3/node.pyz"), shared / "node.pyz"}
    assert len({path.stat().st_ino for path in archives}) == 1
    ended = laptop.orch("wait", sweep)
    assert ended.code == 100, laptop.orch("why", sweep).out
    assert "4 runs: 3 succeeded, 1 failed" in ended.err
    points = laptop.orch("status", sweep, "--json").json["points"]
    jobs = [point["job"].partition("_") for point in points]
    assert len({array for array, _, _ in jobs}) == 1
    assert [task for *_, task in jobs] == ["0", "1", "2", "3"]
    for index, point in enumerate((3, 9, 7, 5)):
        assert laptop.orch("logs", f"{sweep}.{index}", "--rank", "1").out.endswith(f"point {point} rank 1 token of 9\n")
        found = laptop.orch("outputs", f"{sweep}.{index}", "--json").json
        assert [each["path"] for each in found["files"]] == ["model.txt"], found
        assert laptop.text(f"{sweep}.{index}", "outputs/model.txt") == str(point)
        assert laptop.left(f"{sweep}.{index}") == []
    best = laptop.orch("best", "--metric", "accuracy", sweep, "--json").json
    assert [row["run_id"] for row in best[:2]] == [f"{sweep}.1", f"{sweep}.2"]
    assert not shared.exists()
    assert laptop.testbed.run(LAPTOP, "grep", "-r", "swordfish", ".local").code == 1


@pytest.mark.full(
    "tests/cluster/test_slurm_login.py::test_a_sweep_is_one_array_there_and_nothing_of_it_stays",
)
def test_a_point_of_an_array_there_is_requeued_alone(laptop: Laptop) -> None:
    laptop.write("main.py", STEPS)
    named = laptop.write(
        "job.yaml", '{"script": "main.py", "launcher": "exec", "args": [4000, 0.2], "limits": {"grace": "10s"}}'
    )
    done = laptop.orch("submit", named, "-p", laptop.profile(nodes=1), "--sweep", "job.env.POINT=0,1")
    assert done.code == 0, done.err
    points = [f"{done.out.strip()}.{index}" for index in range(2)]
    for point in points:
        laptop.wait_for(point, "begins at")
    laptop.testbed.output("ctl", "scontrol", "requeue", laptop.status(points[1])["job"])
    laptop.wait_for(points[1], "begins at", "nodes/0/attempt_1/rank_0.log")
    done = laptop.orch("cancel", done.out.strip())
    assert (done.code, "cancelled 2 runs" in done.err) == (0, True), done.err
    assert [laptop.status(point)["restarts"] for point in points] == [0, 1]
    assert [laptop.left(point) for point in points] == [[], []]


def test_an_array_that_slurm_refuses_leaves_nothing_there_and_here(laptop: Laptop) -> None:
    named = laptop.write("job.yaml", '{"command": ["true"]}')
    asked = ("-p", laptop.profile(partition="nowhere"), "--sweep", "job.env.POINT=1,2,3")
    done = laptop.orch("submit", named, *asked)
    assert (done.code, "Slurm has no partition 'nowhere'" in done.err) == (1, True), done.err
    assert laptop.orch("status", "--json").json == []
    for name in ("runs", "sweeps"):
        assert laptop.testbed.output("ctl", "ls", f"{SHARED}/{name}") == ""


@pytest.mark.full(
    "tests/cluster/test_slurm_login.py::test_a_sweep_is_one_array_there_and_nothing_of_it_stays",
)
def test_what_waits_of_an_array_there_costs_no_threads_and_is_cancelled_at_once(laptop: Laptop) -> None:
    laptop.write("main.py", STEPS)
    named = laptop.write(
        "job.yaml", '{"script": "main.py", "launcher": "exec", "args": [4000, 0.2], "limits": {"grace": "10s"}}'
    )
    values = ",".join(map(str, range(60)))
    asked = ("-p", laptop.profile(nodes=1), "--sweep", f"job.env.POINT={values}", "--parallel", "1")
    done = laptop.orch("submit", named, *asked)
    assert done.code == 0, done.err
    sweep = done.out.strip()
    laptop.wait_for(f"{sweep}.0", "begins at")
    path = f"/home/alice/.local/state/orch/supervisor.{LAPTOP}.json"
    supervisor = json.loads(laptop.testbed.file(LAPTOP, path).read_text())
    threads = laptop.testbed.output(LAPTOP, "ps", "-o", "nlwp=", "-p", str(supervisor["pid"]))
    assert (
        int(threads) <= 60 + 8
    )  # one looks after each run; one watches the first, three bring things of it, one beats
    done = laptop.orch("cancel", sweep)
    assert (done.code, "cancelled 60 runs" in done.err) == (0, True), done.err
    waited = laptop.orch("wait", sweep)
    assert (waited.code, "60 runs: 60 cancelled" in waited.err) == (103, True)
    assert laptop.left(f"{sweep}.0") == laptop.left(f"{sweep}.59") == []
    assert not laptop.testbed.file("ctl", f"{SHARED}/sweeps/{sweep}").exists()


def test_a_login_node_with_a_second_factor_from_run_to_pull(laptop: Laptop) -> None:
    bed, config = laptop.testbed, laptop.testbed.file(LAPTOP, "/home/alice/.ssh/config")
    bed.ask_for_more("ctl", *SECOND_FACTOR)
    laptop.write("main.py", HELD_AT_FIRST)
    profile = laptop.profile()
    job = laptop.write("job.yaml", '{"script": "main.py", "launcher": "exec", "args": [60, 0]}')
    refused = laptop.orch("submit", job, "-p", profile)
    assert "ctl: the login asks for a second factor, and orch never prompts; open a connection with: ssh alice@ctl" in (
        refused.err
    )
    wait_until(lambda: len(bed.failed_logins("ctl")) == 1, "the failed login in sshd's log")
    config.write_text("Host ctl\n  ControlMaster auto\n  ControlPath ~/.ssh/cm-%C\n  ControlPersist yes\n")
    bed.open_by_hand(LAPTOP, "ssh", "alice@ctl")
    run = laptop.submit(job, "-p", profile)
    laptop.wait_for(run, "rank 0 begins")
    bed.output(LAPTOP, "ssh", "-O", "exit", "alice@ctl")
    wait_until(lambda: "open a connection with: ssh alice@ctl" in laptop.status(run)["detail"], "the command in status")
    bed.file("n1", "/home/alice/go").touch()
    bed.open_by_hand(LAPTOP, "ssh", "alice@ctl")
    assert laptop.orch("wait", run).code == 0, laptop.orch("why", run).out
    assert laptop.orch("pull", run, "--to", "here").code == 0
    assert len(bed.failed_logins("ctl")) <= 2  # one for each configuration
    assert laptop.left(run) == []
