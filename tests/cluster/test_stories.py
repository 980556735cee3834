"""What three people do on their first day, typed in a terminal of 80 and of 120 columns, and what they see."""

from __future__ import annotations

import json
import re

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import HOLD, LAPTOP
from tests.screen import Screen, screen

# As of a student: options by argparse, a progress bar, and a file beside the script.
TRAIN = """
import argparse, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
asked = parser.parse_args()
if os.environ["RANK"] == "0":
    print(f"lr {asked.lr}", flush=True)
    for step in range(1, 41):
        sys.stderr.write(f"\\rstep {step}/40 loss {1 / step:.3f}")
        sys.stderr.flush()
        time.sleep(0.02)
    sys.stderr.write("\\n")
    os.makedirs("out", exist_ok=True)
    open("out/model.bin", "w").write("weights")
"""
SBATCH = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=10:00
srun python3 train.py --lr 0.3
"""


def put(testbed: Control, host: str, folder: str, user: str = "alice", **files: str) -> None:
    """Write files of theirs into a folder of a host: `train_py` is train.py."""
    for name, text in files.items():
        path = f"{folder}/{name.replace('__', '/').replace('_', '.').replace('-', '_')}"
        testbed.output(host, "bash", "-c", f"mkdir -p $(dirname {path}) && cat >{path}", user=user, stdin=text)


def next_line(shown: str) -> str:
    """The command that orch says to type next."""
    return shown.strip().splitlines()[-1].removeprefix("next: ")


def look_at_status(window: Screen, *words: str) -> None:
    """The table of runs fits the window, and says this, at 80 columns and at 120."""
    for width in (80, 120):
        window.resize(width)
        shown = window.type("orch status")
        assert max(map(len, shown.splitlines())) <= width
        assert not [word for word in words if word not in shown], shown


def test_a_student_with_a_script_of_torchrun_s(testbed: Control) -> None:
    put(testbed, LAPTOP, "~/proj", train_py=TRAIN)
    with screen(testbed, LAPTOP, folder="~/proj") as window:
        first = next_line(window.type("orch init train torchrun --nproc_per_node 2 train.py"))
        assert first == "orch submit train.yaml -p train -f"
        shown = window.type(first)
        assert re.findall(r"step \d+/40", shown) == ["step 40/40"]  # the bar is one line
        assert "succeeded after" in shown
        assert "out/model.bin" in window.type("orch outputs train")
        window.type("orch submit train.yaml -- --lr 0.2")  # the profile is the one of that name
        window.type("orch wait train")
        assert "lr 0.2" in window.type("orch logs train")
        window.type("orch submit train.yaml --sweep --lr=0.4,0.5")
        window.type("orch wait last")
        look_at_status(window, "succeeded", "train-")
        sweep = window.type("ls ~/.local/state/orch/sweeps").strip()
        assert "--lr" in window.type(f"orch status {sweep}")
        refused = window.type("orch submit train.yaml train", code=2)
        assert "orch submit train.yaml -p train" in refused
        assert "run ids start with 'train'" in window.type("orch rm train", code=102)
        window.type(f"orch pull {sweep}.0 --to results")
        assert window.type("cat results/outputs/out/model.bin; echo") == "weights\n"


@pytest.mark.full(
    "tests/cluster/test_ssh_queue.py::test_a_second_users_run_waits_and_starts_when_the_first_has_ended",
)
def test_two_people_and_their_machines(testbed: Control) -> None:
    profile = json.dumps({"kind": "ssh", "hosts": ["n1", "n2"], "nproc_per_node": 1, "slots": 1})
    for user, program in (("alice", HOLD), ("bob", TRAIN)):
        put(testbed, LAPTOP, "~/proj", user, train_py=program, **{"cluster-profiles__shared_yaml": profile})
    with screen(testbed, LAPTOP, folder="~/proj") as hers, screen(testbed, LAPTOP, "bob", folder="~/proj") as his:
        assert next_line(hers.type("orch init lab --host n[1-2]")).startswith("orch doctor -p lab")
        assert "python3" in hers.type("orch doctor -p lab; true")
        hers.type("orch run -d -p shared --name hold -- train.py")
        hers.begin("orch logs -f hold")
        hers.until("holding")
        hers.keys("C-c")
        assert "detached" in hers.end(code=130)
        shown = his.type("orch run -d -p shared --name mine -- train.py --lr 0.7")
        assert "number 1 in the queue" in " ".join(shown.split())
        for width in (80, 120):
            his.resize(width)
            queue = his.type("orch queue -p shared")
            assert re.search(r"alice +hold-\w+ +running", queue)
            assert re.search(r"bob +mine-\w+ +waiting", queue)
        look_at_status(his, "pending", "mine-")
        assert "0 processes left" in hers.type("orch cancel hold")
        assert "succeeded" in his.type("orch wait mine")
        assert "lr 0.7" in his.type("orch logs mine")
        assert "out/model.bin" in his.type("orch outputs mine")
        testbed.cut("n2")
        refused = his.type("orch run -p shared --no-wait -- train.py", code=1)
        assert "n2" in refused
        testbed.heal("n2")


@pytest.mark.cluster("slurm", nodes=4)
@pytest.mark.full(
    "tests/cluster/test_slurm_login.py::test_a_run_is_submitted_followed_requeued_and_brought_home",
)
def test_a_user_of_slurm_on_the_login_node_and_at_a_laptop(testbed: Control) -> None:
    folder = "/shared/alice"
    put(testbed, LAPTOP, folder, train_py=TRAIN, train_sbatch=SBATCH)
    with screen(testbed, LAPTOP, folder=folder) as window:
        window.type("export ORCH_HOME=/shared/alice-orch")
        first = next_line(window.type("orch init train train.sbatch"))
        assert first == "orch submit train.yaml -p train -f"
        shown = window.type(first)
        job = re.search(r"submitted (train-\w+) as Slurm job (\d+)", shown)
        assert job is not None, shown
        assert "lr 0.3" in shown
        assert f"job {job[2]} on " in " ".join(window.type("orch status train").split())
        held = window.type("orch submit train.yaml --set 'profile.sbatch={begin: now+1hour}'")
        assert "as Slurm job" in held
        look_at_status(window, "pending", "succeeded")
        assert "nothing of it had been started" in window.type("orch cancel last")
        assert "cancelled" in window.type("orch wait last", code=103)
    far = {"kind": "slurm", "login": "alice@ctl", "workdir": "/shared/alice-login", "nodes": 2, "nproc_per_node": 1,
           "exclude": "n4", "time": "10m"}  # fmt: skip
    put(testbed, "n4", "~/proj", train_py=TRAIN, **{"cluster-profiles__far_yaml": json.dumps(far)})
    with screen(testbed, "n4", folder="~/proj") as window:
        shown = window.type("orch run -p far -- train.py --lr 0.9")
        assert "as Slurm job" in shown
        assert re.findall(r"step \d+/40", shown) == ["step 40/40"]
        assert "out/model.bin" in window.type("orch outputs last")
        look_at_status(window, "succeeded")
