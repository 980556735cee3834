"""The testbed is what the other tests take it for: hosts of their own, two users, faults, and nothing left of it."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from orchestrator.node.system.processes import descendants, identify, is_alive, wait_gone
from tests.cluster.control import Control
from tests.patience import PATIENCE
from tests.testbed import hosts, images, network
from tests.testbed.__main__ import parser
from tests.testbed.layout import MOST_NODES, PEOPLE, RECORD, REPO, Cluster, ClusterError, address, standing
from tests.testbed.machine import wait_until

pytestmark = pytest.mark.full(because="every test in tests/cluster fails without a working testbed")

SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=30")
QUICK = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=2")  # where no answer is to come
RANK = """
import torch.distributed as dist, torch
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(total.item())
dist.destroy_process_group()  # else gloo's threads may be there still when the process goes, which aborts it
"""


def command(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The testbed's command line, as somebody would type it."""
    argv = [sys.executable, "-m", "tests.testbed", *args]
    return subprocess.run(argv, cwd=REPO, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("user", ["alice", "bob", "root"])
def test_everybody_reaches_every_host_by_ssh(testbed: Control, user: str) -> None:
    for host in testbed.cluster.hosts:
        for start in ("ctl", "n2"):
            assert testbed.output(start, "ssh", *SSH, host, "hostname; id -un", user=user).split() == [host, user]


def test_a_host_has_its_own_homes_and_tmp_and_one_folder_is_shared(testbed: Control) -> None:
    for folder in ("/home/alice", "/tmp", "/scratch", "/shared", "/dev/shm"):
        testbed.output("n1", "touch", f"{folder}/mark")
    seen = testbed.output("n2", "sh", "-c", "ls -d /*/mark /home/alice/mark /dev/shm/mark 2>&-; true")
    assert seen == "/shared/mark"
    assert "Permission denied" in testbed.run("n1", "ls", "/home/alice", user="bob").err
    testbed.output("n2", "touch", "/shared/from_bob", user="bob")
    assert testbed.file("n1", "/home/alice/mark").exists()
    assert not testbed.file("n2", "/home/alice/mark").exists()


def test_a_test_finds_the_homes_as_new(testbed: Control) -> None:
    """The one before this one left files in them."""
    seen = {Path(path).parts[2] for path in (REPO, sys.prefix, sys.base_prefix) if Path(path).parts[1] == "tmp"}
    for host in testbed.cluster.hosts:
        assert testbed.output(host, "sh", "-c", "ls -A ~ /tmp /scratch /shared").split() == [
            *("/home/alice:", ".ssh", "/scratch:", "/shared:", "/tmp:", *sorted(seen))  # the checkout is everywhere
        ]


def test_the_machine_does_not_know_the_hosts_users(testbed: Control) -> None:
    testbed.output("n1", "id", "alice")
    assert "alice" not in Path("/etc/passwd").read_text()


def test_a_cut_cable_is_silence_until_it_is_healed(testbed: Control) -> None:
    testbed.cut("n2")
    assert "timed out" in testbed.run("ctl", "ssh", *QUICK, "n2", "true").err
    assert testbed.output("n2", "hostname") == "n2"  # it goes on by itself
    testbed.heal("n2")
    assert testbed.output("ctl", "ssh", *SSH, "n2", "hostname") == "n2"


def test_a_crashed_host_is_gone_without_a_word_and_comes_back_with_its_disk(testbed: Control) -> None:
    testbed.output("n2", "sh", "-c", "echo kept > ~/file; echo lost > /dev/shm/file")
    connection = testbed.start("ctl", "ssh", *SSH, "n2", "echo here; exec sleep 1000")
    assert connection.stdout is not None
    assert connection.stdout.readline() == "here\n"
    before = testbed.processes("n2")
    testbed.crash("n2")
    assert not any(is_alive(process) for process in before)
    assert connection.poll() is None  # nobody told it
    assert testbed.processes("n2") == []
    testbed.boot("n2")
    assert testbed.output("ctl", "ssh", *SSH, "n2", "cat file; ls /dev/shm") == "kept"


def test_processes_are_found_by_user_and_by_mark(testbed: Control) -> None:
    testbed.start("n1", "sleep", "1000", ORCH_MARK="run-1/0")
    testbed.start("n1", "sleep", "1000", user="bob")
    wait_until(lambda: len(testbed.processes("n1", "bob")) == 1, "bob's sleep")
    wait_until(lambda: [each.command for each in testbed.processes("n1", mark="run-1/")] == ["sleep"], "alice's sleep")
    assert testbed.processes("n1", "bob", mark="run-1/") == []
    assert testbed.processes("n2", "bob") == []


def test_orphans_on_a_host_are_reaped(testbed: Control) -> None:
    testbed.output("n1", "sh", "-c", "setsid --fork true")
    wait_until(lambda: "Z" not in testbed.output("n1", "ps", "-e", "-o", "stat="), "the reaping")


@pytest.mark.cluster("slurm")
def test_slurm_runs_alices_steps_on_all_nodes(testbed: Control) -> None:
    nodes = testbed.cluster.workers
    assert sorted(testbed.output("ctl", "srun", f"-N{len(nodes)}", "hostname").split()) == sorted(nodes)


@pytest.mark.cluster("slurm")
def test_slurm_accounts_for_a_batch_job(testbed: Control) -> None:
    done = testbed.run("ctl", "sbatch", "--parsable", "--wait", "--gres=gpu:2", "--wrap", "id -un; env; exit 7")
    job = done.out.strip()
    assert done.code == 7
    ask = ("sacct", "-n", "-X", "-P", "-j", job, "-o", "user,state,exitcode,nodelist")
    # Slurm writes it behind, and for some seconds calls the user root
    wait_until(lambda: testbed.output("ctl", *ask).startswith("alice|FAILED|7:0|"), "the account of the job")
    node = testbed.output("ctl", *ask).split("|")[3]
    log = testbed.output(node, "cat", f"slurm-{job}.out").splitlines()  # in her home there: nothing is shared
    assert log[0] == "alice"
    assert "CUDA_VISIBLE_DEVICES=0,1" in log


@pytest.mark.cluster("slurm")
def test_a_node_that_comes_back_takes_jobs_again(testbed: Control) -> None:
    testbed.crash("n3")
    testbed.boot("n3")
    assert testbed.output("ctl", "srun", "-w", "n3", "hostname") == "n3"


@pytest.mark.cluster("docker")
def test_every_node_has_a_docker_daemon_of_its_own(testbed: Control) -> None:
    for host in testbed.cluster.workers:
        assert testbed.output(host, "docker", "info", "--format", "{{.Name}}") == host
    testbed.output("n1", "sh", "-c", "tar c --files-from /dev/null | docker import - nothing:1")
    for host, names in (("n1", "nothing"), ("n2", "")):
        assert testbed.output(host, "docker", "images", "--format", "{{.Repository}}", "nothing") == names
    testbed.output("n1", "docker", "rmi", "nothing:1")


@pytest.mark.cluster("docker")
def test_the_base_image_is_the_same_on_every_node_and_runs_the_tests_interpreter(testbed: Control, image: str) -> None:
    ask = ("docker", "image", "inspect", "--format", "{{.Id}}", image)
    assert len({testbed.output(host, *ask) for host in testbed.cluster.workers}) == 1
    user, mounts = str(PEOPLE[0].uid), [f"--volume={path}:{path}:ro" for path in images.mounts()]
    options = ("--rm", "--network=host", f"--user={user}:{user}", *mounts)
    said = testbed.output(
        "n2", "docker", "run", *options, image, sys.executable, "-c", "import torch, os; print(os.getuid())"
    )
    assert said == user


def test_openssh_refuses_a_changed_host_key(testbed: Control) -> None:
    testbed.change_key("n2")
    refused = testbed.run("ctl", "ssh", *SSH, "n2", "true")
    assert refused.code == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.err


def test_the_known_key_is_back_after_that(testbed: Control) -> None:
    assert testbed.output("ctl", "ssh", *SSH, "n2", "hostname") == "n2"


def test_a_gated_host_is_reached_through_its_door_alone(testbed: Control) -> None:
    testbed.gate("n3", "n1")
    assert "timed out" in testbed.run("ctl", "ssh", *QUICK, "n3", "true").err
    assert testbed.output("ctl", "ssh", *SSH, "-J", "n1", "n3", "hostname") == "n3"
    assert testbed.output("n1", "ssh", *SSH, "n3", "hostname") == "n3"


def test_one_host_can_have_another_sshd(testbed: Control) -> None:
    testbed.sshd("n2", "MaxSessions 1", "Banner /etc/hosts")
    assert "localhost" in testbed.run("ctl", "ssh", *SSH, "n2", "true").err
    shared = (*SSH, "-o", "ControlPath=/tmp/%h")
    master = testbed.start("ctl", "ssh", *shared, "-M", "n2", "echo here; exec cat")
    assert master.stdout is not None
    assert master.stdout.readline() == "here\n"
    assert testbed.run("ctl", "ssh", *shared, "-o", "ProxyCommand=false", "n2", "true").code == 255


def test_alice_has_the_tests_interpreter_and_sources(testbed: Control) -> None:
    shown = testbed.python("n1", "-c", "import torch, orchestrator; print(torch.__version__, orchestrator.__file__)")
    assert shown.code == 0, shown.err
    assert shown.out.split()[1] == str(REPO / "orchestrator" / "__init__.py")
    assert testbed.orch("status", "--json").code == 0
    assert testbed.run("n1", "touch", str(REPO / "new")).code != 0


def test_gloo_ranks_on_two_nodes_talk(testbed: Control) -> None:
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    argv = (sys.executable, "-c", RANK)
    ranks = [testbed.start(host, *argv, RANK=str(rank), **common) for rank, host in enumerate(("n1", "n2"))]
    for rank in ranks:
        out, err = rank.communicate(timeout=PATIENCE)
        assert out == "3\n", err


def test_a_second_testbed_is_refused(testbed: Control, tmp_path: Path) -> None:
    refused = command("up", TESTBED=str(tmp_path / "second"))
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert f"a testbed is up already, in {testbed.cluster.root}" in refused.stderr
    assert "down" in refused.stderr
    assert not (tmp_path / "second").exists()


def test_only_root_has_a_testbed(testbed: Control) -> None:
    refused = testbed.python("n1", "-m", "tests.testbed", "up")
    assert refused.code == 1
    assert refused.err.startswith("testbed: the testbed needs root")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["cut", "n99"], "there is no host n99: this testbed has ctl, n1, n2, n3"),
        (["boot", "n1"], "n1 is on already"),
        (["up", "--nodes", "1001"], "1 to 1000 nodes"),
    ],
)
def test_mistakes_get_a_sentence(testbed: Control, args: list[str], words: str) -> None:
    refused = command(*args)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_no_two_of_a_thousand_hosts_share_an_address() -> None:
    names = Cluster(Path("/nowhere"), nodes=MOST_NODES).hosts
    found = {ip_address(address(host)) for host in names}
    assert len(found) == len(names) == 1001
    inside = ip_network("10.90.0.0/16")
    assert found <= set(inside.hosts())
    assert (address("n2"), address("n250")) == ("10.90.0.12", "10.90.1.4")


def test_without_a_testbed_cluster_tests_skip_and_say_why() -> None:
    argv = [sys.executable, "-m", "pytest", "-rs", "-k", "gloo", __file__]
    none = {**os.environ, "TESTBED": "0"}
    done = subprocess.run(argv, cwd=REPO, env=none, capture_output=True, text=True, check=True)
    assert "TESTBED=0 says that no testbed is wanted" in done.stdout
    assert "1 skipped" in done.stdout


def new_root(folder: Path) -> Path:
    """A name that no testbed had: its control groups are the machine's, and a killed one's are still there."""
    return folder / f"bed-{secrets.token_hex(3)}"


def mounts() -> list[str]:
    """All mounts but that of the folder of network namespaces, which `ip` makes once, for whoever comes later."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " /run/netns " not in line]


def control_groups(root: Path, below: str = "") -> list[Path]:
    """Those of a testbed: in the one hierarchy of version 2, or in each of version 1. Others' come and go meanwhile."""
    groups, name = Path("/sys/fs/cgroup"), f"orch-testbed-{root.name}{below}"
    return [*groups.glob(name), *groups.glob(f"*/{name}")]


def assert_nothing_stands(root: Path) -> None:
    assert standing() is None
    assert network.networks() == []
    assert not root.exists()
    assert not RECORD.exists()
    assert control_groups(root) == []


def inhabitants() -> list[int]:
    """Every living process that is in another process namespace than this one."""
    here, found = os.stat("/proc/self/ns/pid").st_ino, []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if os.stat(f"/proc/{pid}/ns/pid").st_ino != here and identify(pid) is not None:
                found.append(pid)
        except OSError:
            continue
    return found


def test_down_leaves_nothing(no_testbed: None, tmp_path: Path) -> None:
    root, before, strangers, top = new_root(tmp_path), mounts(), set(inhabitants()), os.listdir("/")
    started = command("up", "--docker", "--nodes", "2", TESTBED=str(root))
    assert started.returncode == 0, started.stderr
    lived = [process for pid in set(inhabitants()) - strangers if (process := identify(pid)) is not None]
    assert {"sshd", "slurmd", "slurmctld", "slurmdbd", "mariadbd", "munged", "dockerd"} <= {
        each.command for each in lived
    }
    container = "cd / && tar ch usr/bin/sleep $(ldd usr/bin/sleep | grep -o '/[^ ]*') 2>&- | docker import - sleep:1"
    assert command("on", "alice@n1", "sh", "-c", container).returncode == 0
    asleep = ("docker", "run", "--detach", "--network", "host", "sleep:1", "/usr/bin/sleep", "1000")
    begun = command("on", "alice@n1", *asleep)
    assert begun.returncode == 0, begun.stderr
    assert control_groups(root, "/n1/*")
    ended = command("down", TESTBED=str(root))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert_nothing_stands(root)
    assert not any(is_alive(process) for process in lived)
    assert set(inhabitants()) <= strangers
    assert mounts() == before
    assert os.listdir("/") == top
    assert command("down").returncode == 0  # once more does no harm


@pytest.mark.parametrize("instant", ["keys/n1", "run/n1.pid", "hosts/ctl/srv/mysql", "hosts/ctl/srv/log/slurmctld.log"])
def test_down_clears_up_after_a_killed_up(no_testbed: None, tmp_path: Path, instant: str) -> None:
    root, before, strangers = new_root(tmp_path), mounts(), set(inhabitants())
    argv = [sys.executable, "-m", "tests.testbed", "up", "--nodes", "2"]
    with subprocess.Popen(argv, cwd=REPO, env={**os.environ, "TESTBED": str(root)}) as half:
        wait_until((root / instant).exists, instant)
        half.send_signal(signal.SIGSTOP)  # so that it calls nothing more
        called = descendants(half.pid)
        half.kill()
    # Whatever is on a host is for `down` to end; programs that it called here end by themselves, but not at once.
    on_hosts = {pid for name in network.networks() for pid in network.in_network(name)}
    assert wait_gone([each for each in called if each.pid not in on_hosts], PATIENCE) == []
    assert command("down").returncode == 0
    assert_nothing_stands(root)
    assert set(inhabitants()) <= strangers
    assert mounts() == before


def test_up_wants_an_empty_folder(no_testbed: None, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    refused = command("up", TESTBED=str(tmp_path))
    assert refused.returncode == 1
    assert f"{tmp_path} holds files that are not a testbed's" in refused.stderr
    assert (tmp_path / "thesis.tex").exists()
    assert standing() is None


def test_closed_sources_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(hosts, "REPO", tmp_path)
    with pytest.raises(ClusterError, match=f"ordinary users can't read {tmp_path}"):
        hosts.readable()


def test_its_page_has_every_verb() -> None:
    rows = [line for line in (REPO / "docs" / "testbed.md").read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    verbs = next(action for action in parser()._actions if action.dest == "verb").choices
    assert verbs is not None
    assert named == set(verbs)
