"""A rank of orch against the same program under python and torchrun: what it finds, and what it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.launcher.warmup import open_gpus
from orchestrator.node.system.processes import marked
from tests.patience import PATIENCE

from .conftest import Orch
from .test_runs import wait_for_line

PROGRAMS = Path(__file__).parent / "programs"

# Writes down everything that a program may look at to find out how it was started.
LOOK = """
import json, os, pickle, signal, sys, threading
import __main__

class Own:
    pass

def look():
    spec = __main__.__spec__
    return {
        "argv": sys.argv,
        "path0": sys.path[0],
        "cwd": os.getcwd(),
        "name": __name__,
        "file": __file__,
        "spec": spec and spec.name,
        "package": __package__,
        "main_is_me": __main__.look is look,
        "loader": type(__loader__).__name__,
        "builtins": type(__builtins__).__name__,
        "extra_globals": sorted(set(vars(__main__)) - {"json", "os", "pickle", "signal", "sys", "threading",
            "__main__", "Own", "look", "helper"}),
        "pickles": pickle.loads(pickle.dumps(Own())).__class__ is Own,
        "helper": __import__("helper").WHO,
        "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": threading.active_count(),
        "main_thread": threading.current_thread() is threading.main_thread(),
        "stdin": sys.stdin.read(),
    }

if __name__ == "__main__":
    with open(os.environ["LOOK_AT"], "w") as file:
        json.dump(look(), file)
"""


@pytest.mark.parametrize("launcher", ["fork", "exec"])
@pytest.mark.parametrize("kind", ["script", "nested", "module"])
def test_a_rank_starts_as_python_would_start_it(orch: Orch, project, tmp_path: Path, kind: str, launcher: str) -> None:
    if (kind, launcher) == ("script", "fork"):  # what torch leaves in the launcher is not to be seen either
        orch = orch.with_torch
    folder = project(helper_py="WHO = 'the helper beside the program'\n", look_py=LOOK)
    (folder / "sub").mkdir()
    for name in ("look.py", "helper.py"):
        (folder / "sub" / name).write_text((folder / name).read_text())
    what, argv = {
        "script": ("script: look.py", ["look.py"]),
        "nested": ("script: sub/look.py", ["sub/look.py"]),
        "module": ("module: look", ["-m", "look"]),
    }[kind]
    (folder / "job.yaml").write_text(f"{what}\nargs: [--x, 'a b', '']\nlauncher: {launcher}\nenv: {{LOOK_AT: null}}\n")
    place = folder / "one.yaml"
    place.write_text("kind: local\nnproc_per_node: 1\n")
    seen, expected = tmp_path / "seen.json", tmp_path / "expected.json"
    done = orch("submit", str(folder / "job.yaml"), "-p", str(place), "-f", "--env", f"LOOK_AT={seen}")
    assert done.code == 0, done.err
    code = orch.run().path / "code"
    subprocess.run(
        [sys.executable, *argv, "--x", "a b", ""],
        cwd=code, env={**os.environ, "LOOK_AT": str(expected)}, check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert json.loads(seen.read_text()) == json.loads(expected.read_text())


ENVIRONMENT = """
import json, os, sys
with open(f"{os.environ['LOOK_AT']}.{os.environ['RANK']}", "w") as file:
    json.dump(dict(os.environ), file)
"""


def test_the_environment_is_torchruns(orch: Orch, project, tmp_path: Path) -> None:
    """Every name that the real torchrun sets is set, and means the same."""
    orch = orch.with_torch
    folder = project(env_py=ENVIRONMENT, env_yaml="script: env.py\nenv: {LOOK_AT: null}\nlauncher: fork\n")
    assert orch("submit", str(folder / "env.yaml"), "-p", "local", "-f", "--env", f"LOOK_AT={tmp_path}/orch").code == 0
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
         "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(folder / "env.py")],
        env={**os.environ, "LOOK_AT": f"{tmp_path}/torchrun"}, check=True, timeout=PATIENCE, capture_output=True,
    )  # fmt: skip
    same = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
            "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT")  # fmt: skip
    for rank in range(2):
        ours = json.loads(Path(f"{tmp_path}/orch.{rank}").read_text())
        theirs = json.loads(Path(f"{tmp_path}/torchrun.{rank}").read_text())
        added = set(theirs) - set(os.environ)
        assert len(added) >= 17
        assert added - set(ours) == set()
        assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print(f"sum {int(total)} store {os.environ.get('TORCHELASTIC_USE_AGENT_STORE')}\\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("launcher", "profile"),
    [("fork", "local-2x2"), ("exec", "local"), ("torchrun", "local-2x2"), ("accelerate", "local")],
)
def test_every_launcher_joins_the_ranks(orch: Orch, project, launcher: str, profile: str) -> None:
    folder = project(sum_py=ALL_REDUCE, sum_yaml=f"script: sum.py\nlauncher: {launcher}\n")
    world = 4 if launcher == "fork" else 2  # each of another launcher's ranks imports torch
    ranks = ("--set", "profile.nproc_per_node=1") if (launcher, profile) == ("torchrun", "local-2x2") else ()
    done = orch.with_torch("submit", str(folder / "sum.yaml"), "-p", profile, *ranks, "-f")
    assert done.code == 0, done.err + orch("logs", "last", "--all").out
    said = [line for line in orch("logs", "last", "--all").out.splitlines() if "sum" in line]
    assert len(said) == world
    assert all(f"sum {world * (world - 1) // 2}" in line for line in said)


LOCAL_RANK = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--lr")
print(parser.parse_args())
"""


@pytest.mark.parametrize(("line", "launcher"), [("deepspeed", "fork"), ("python -m torch.distributed.launch", "exec")])
def test_a_script_that_reads_local_rank_as_an_option_is_told_it(orch: Orch, project, line: str, launcher: str) -> None:
    folder = project(train_py=LOCAL_RANK)
    more = ("--set", f"job.launcher={launcher}", "--nproc-per-node", "2")
    done = orch("run", "-p", "local", *more, "--", *line.split(), "train.py", "--lr", "1", cwd=folder)
    assert done.code == 0, done.err
    said = orch("logs", "last", "--all").out
    assert [f"Namespace(local_rank={rank}, lr='1')" in said for rank in range(2)] == [True, True], said


def test_processes_that_a_program_spawns_join_as_under_python(orch: Orch, project, tmp_path: Path) -> None:
    """They serve a store at the reserved port, and at the ports of tutorials."""
    program = (PROGRAMS / "spawning.py").read_text()
    folder = project(multigpu_py=program, multigpu_yaml="script: multigpu.py\nargs: ['2']\nlauncher: exec\n")
    done = orch.with_torch("submit", str(folder / "multigpu.yaml"), "-p", "local", "-f")
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["given: 3", "own port: 3", "tcp: 3", "file: 3"]


def test_a_group_at_a_port_of_its_own_works_in_any_process_that_a_rank_starts(orch: Orch, project) -> None:
    groups = (PROGRAMS / "own_groups.py").read_text()
    folder = project(groups_py=groups, groups_yaml="script: groups.py\nlauncher: fork\nretry: {infra: 0}\n")
    done = orch.with_torch("submit", str(folder / "groups.yaml"), "-p", "local", "-f")
    assert done.code == 0, done.err
    # torch may warn that the first group's store has closed the connection, and then connects to the second's
    sums = [line for line in done.out.splitlines() if line.endswith(": 3")]
    assert sums == ["given: 3", "first of its own: 3", "second of its own: 3"]


def test_a_program_that_orch_can_not_set_up_is_served_the_held_port(orch: Orch, project) -> None:
    folder = project(sum_py=ALL_REDUCE, sum_yaml=f"command: [sh, -c, '{sys.executable} -I sum.py']\n")
    done = orch.with_torch("submit", str(folder / "sum.yaml"), "-p", "local", "-f")
    assert done.code == 0, done.err
    assert "sum 1 store 1" in done.out


def test_a_single_rank_of_a_python_line_has_no_variables_until_it_joins(orch: Orch, project) -> None:
    """So a program that starts its own ranks, or asks whether there are several, works as under python."""
    program = f"import os\nprint('RANK' in os.environ, 'MASTER_PORT' in os.environ, flush=True)\n{ALL_REDUCE}"
    folder = project(sum_py=program)
    line = ("--nproc-per-node", "1", "--set", "job.launcher=fork", "--", sys.executable, "sum.py")
    done = orch.with_torch("run", "-p", "local", *line, cwd=folder)
    assert done.code == 0, done.err
    assert done.out.splitlines()[:2] == ["False False", "sum 0 store False"]


def test_a_console_script_that_is_a_launcher_is_started_once_and_ends_with_its_run(
    orch: Orch, project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "env" / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "env" / "bin").mkdir()
    (packages / "own_launcher.py").write_text(
        "import os, subprocess, sys\n"
        "def main():\n"
        "    print('started with', 'RANK' in os.environ, flush=True)\n"
        "    child = [sys.executable, '-c', 'import time; print(\"child\", flush=True); time.sleep(600)']\n"
        "    several = [subprocess.Popen(child, start_new_session=True, env={}) for _ in range(2)]\n"
        "    return max(each.wait() for each in several)\n"
        "def by_torch():\n"
        "    from torch.distributed.run import run\n"
    )
    script = tmp_path / "env" / "bin" / "own-train"
    head = f"#!{sys.executable}\nimport sys\nsys.path.append({str(packages)!r})\n"
    script.write_text(f"{head}from own_launcher import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    folder = project()
    done = orch("run", "-p", "local", "-d", "--", "own-train", "--lr", "1", cwd=folder)
    assert (
        "note: own-train starts its own processes (own_launcher), so orch starts it once: 1 rank on 1 node" in done.err
    )
    run = orch.run()
    wait_for_line(run, "child")
    assert orch("cancel", "last").code == 0
    lines = orch("logs", "last", "--all").out.splitlines()
    assert sum("started with False" in line for line in lines) == 1, lines
    assert marked(run.run_id) == []
    assert [event["swept"] for event in orch.events(run, "agent_ended")] == [2]  # the children have no mark


def test_forked_ranks_do_not_share_random_numbers(orch: Orch, project) -> None:
    program = (
        "import os, random, numpy, torch\n"
        "print(random.random(), numpy.random.rand(), torch.rand(1).item(), os.urandom(4).hex())\n"
    )
    folder = project(dice_py=program, dice_yaml="script: dice.py\nlauncher: fork\nwarm_imports: [numpy]\n")
    assert orch.with_torch("submit", str(folder / "dice.yaml"), "-p", "local", "-f").code == 0
    rows = [line.split(" ", 1)[1].split() for line in orch("logs", "last", "--all").out.splitlines()]
    for column in zip(*rows, strict=True):
        assert len(set(column)) == 2, rows


def test_what_a_program_leaves_open_is_written_at_its_end(orch: Orch, project, tmp_path: Path) -> None:
    program = (
        "import atexit, sys, threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "ThreadPoolExecutor().submit(int)\n"  # its threads wait for work until the interpreter tells them to end
        f"file = open('{tmp_path}/left', 'w')\nfile.write('kept')\n"
        "atexit.register(lambda: print('atexit ran'))\n"
        "said = threading.Event()\n"
        "threading.Thread(target=lambda: (said.wait(), time.sleep(0.3), print('thread ran'))).start()\n"
        "sys.stdout.write('no newline at the end')\nsaid.set()\nsys.exit(0)\n"
    )
    folder = project(end_py=program, end_yaml="script: end.py\nlauncher: fork\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    assert orch("submit", str(folder / "end.yaml"), "-p", str(folder / "one.yaml"), "-f").code == 0
    assert (tmp_path / "left").read_text() == "kept"
    assert orch("logs", "last").out == "no newline at the endthread ran\natexit ran\n"


@pytest.mark.parametrize(
    ("last_words", "code"),
    [("sys.exit()", 0), ("sys.exit(7)", 7), ("sys.exit('a reason')", 1), ("raise KeyboardInterrupt", 130), ("1 +", 1)],
)
def test_exit_codes_are_pythons(orch: Orch, project, last_words: str, code: int) -> None:
    folder = project(end_py=f"import sys\n{last_words}\n", end_yaml="script: end.py\nlauncher: fork\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    orch("submit", str(folder / "end.yaml"), "-p", str(folder / "one.yaml"), "-f")
    exits = orch.events(orch.run(), "rank_exit")
    assert [event["code"] for event in exits] == [code], exits
    plain = subprocess.run(
        [sys.executable, str(folder / "end.py")], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    if code != 130:  # there, python itself dies of SIGINT
        assert plain.returncode == code
        last = (plain.stderr.strip().splitlines() or [""])[-1]
        assert last in orch("logs", "last").out


def test_a_program_that_does_not_exist_is_named(orch: Orch, project) -> None:
    folder = project(no_yaml="command: [no-such-program]\n")
    done = orch("submit", str(folder / "no.yaml"), "-p", "local", "-f")
    assert done.code == 100
    assert "exit code 127" in done.err
    assert "check its name and PATH" in done.err


def test_a_data_loader_with_workers_runs_in_a_forked_rank(orch: Orch, project) -> None:
    program = (
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "if __name__ == '__main__':\n"
        "    data = TensorDataset(torch.arange(64.0))\n"
        "    for how in ('fork', 'spawn'):\n"
        "        loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context=how)\n"
        "        print(how, sum(batch[0].sum().item() for batch in loader), flush=True)\n"
    )
    folder = project(load_py=program, load_yaml="script: load.py\nlauncher: fork\n")
    (folder / "one.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    done = orch.with_torch("submit", str(folder / "load.yaml"), "-p", str(folder / "one.yaml"), "-f")
    assert done.out == "fork 2016.0\nspawn 2016.0\n", done.err


def test_a_gpu_that_an_import_opened_is_noticed(tmp_path: Path) -> None:
    for number, target in enumerate(["/dev/null", "/dev/nvidiactl", "/dev/nvidia0", "pipe:[7]"]):
        (tmp_path / str(number)).symlink_to(target)
    assert open_gpus(str(tmp_path)) == ["/dev/nvidia0", "/dev/nvidiactl"]


NETWORK = """
import os, sys
sys.excepthook = lambda *told, before=sys.excepthook: before(*told)  # as torch.distributed hangs its own before
if os.environ["RANK"] == "1":
    raise RuntimeError("NCCL error in: NCCLUtils.cpp:94, unhandled system error\\nLast error:\\n"
                       "Call to connect to 10.0.0.2<41765> failed: Connection timed out")
"""


@pytest.mark.parametrize("launcher", ["fork", "exec", "torchrun"])
def test_all_of_an_errors_lines_reach_the_verdict(orch: Orch, project, launcher: str) -> None:
    """The log alone has the first as the error: what NCCL adds below is what tells a network from a program."""
    if launcher == "torchrun":
        orch = orch.with_torch
    retry = "retry: {infra: 0}\n"
    folder = project(net_py=NETWORK, net_yaml=f"script: net.py\nlauncher: {launcher}\n{retry}")
    assert orch("submit", str(folder / "net.yaml"), "-p", "local", "-f").code == 100
    run = orch.run()
    (failed,) = orch.events(run, "attempt_failed")
    assert failed["culprit"]["error"]["message"].endswith("Connection timed out")
    why = orch("why", run.run_id).out
    assert (failed["cause"], "ibstat" in why, "rank 1 on node 0" in why) == ("infra", True, True)
    (written,) = run.path.glob("nodes/0/attempt_0/error_1.json")
    assert written.stat().st_mode & 0o777 == 0o600
    said = "".join(log.read_text() for log in run.path.glob("nodes/0/attempt_0/rank_*.log"))
    assert said.count("in <module>\n    raise RuntimeError") == 1


LOOKS = "import sys; print('shared' if 'torch' in sys.modules else 'alone', flush=True)\n"


@pytest.mark.parametrize(("wakes", "rank_is"), [(False, "shared"), (True, "alone")])
def test_on_a_node_with_gpus_ranks_are_forked_unless_an_import_has_woken_cuda(
    orch: Orch, project, tmp_path: Path, wakes: bool, rank_is: str
) -> None:
    """torch refuses CUDA in a fork after its driver was asked, whether or not there is one."""
    folder = project(
        looks_py=LOOKS,
        waker_py=f"import torch\n{'torch.cuda.is_available()' if wakes else ''}\n",
        looks_yaml="script: looks.py\nlauncher: fork\nwarm_imports: [waker, json]\n"
        f"env: {{CUDA_VISIBLE_DEVICES: '0', PYTHONPATH: {tmp_path}/project}}\n",
    )
    done = orch.with_torch("submit", str(folder / "looks.yaml"), "-p", "local", "-f")
    assert done.code == 0, done.err
    (imported,) = orch.events(orch.run(), "launcher_imported")
    assert imported["opened_gpu"] == ("waker" if wakes else None)
    assert rank_is in done.out
