"""The small parts of training: options, backend choice, heartbeats, signals, generators, data files."""

import gzip
import json
import os
import random
import signal
import struct
import time

import pytest
import torch
from torch import nn

from orchestrator.training.checkpoint import random_state
from orchestrator.training.data import samples as data
from orchestrator.training.data.task import load_task
from orchestrator.training.distributed import stop
from orchestrator.training.distributed.devices import BOTH, choose
from orchestrator.training.distributed.ranks import Ranks, read_ranks
from orchestrator.training.errors import CheckpointError, UserError
from orchestrator.training.options import check_batch, parse
from orchestrator.training.progress.heartbeat import HEARTBEAT_BYTES, Heartbeat, HeartbeatFile, encode
from orchestrator.training.progress.report import Reporter, measure, numbers


@pytest.mark.parametrize(
    ("batch", "ranks", "nearest"), [(100, 12, "96 and 108"), (5, 8, "8 and 16"), (7, 2, "6 and 8")]
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest(batch, ranks, nearest):
    with pytest.raises(UserError, match=f"global batch of {batch} .* {ranks} ranks: .* are {nearest} "):
        check_batch(batch, ranks)
    check_batch(96, 12)


def test_options_of_the_task_are_json_where_they_parse():
    options = parse(["--task", "t.py", "--option", "a=1.5", "--option", "b=[1]", "--option", "c=x=y"])
    assert options.extra == {"a": 1.5, "b": [1], "c": "x=y"}
    assert (options.epochs, options.steps) == (1, None)
    assert parse(["--task", "t.py", "--steps", "3"]).epochs is None


@pytest.mark.parametrize(
    "arguments", [["--epochs", "1", "--steps", "1"], ["--steps", "0"], ["--lr", "nan"], ["--option", "x"]]
)
def test_a_wrong_command_line_is_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(["--task", "t.py", *arguments])
    assert "error:" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_backend_is_chosen_or_refused_with_a_remedy():
    assert choose("auto", Ranks(grouped=True)).backend == "gloo"
    assert choose("auto", Ranks()).backend == ""
    with pytest.raises(UserError, match=r"needs a GPU .* sees 0: choose ORCH_BACKEND=gloo"):
        choose("nccl", Ranks(grouped=True))
    if not torch.distributed.is_mpi_available():
        with pytest.raises(UserError, match="built without MPI: choose"):
            choose("mpi", Ranks(grouped=True))
    with pytest.raises(UserError, match=r"one of auto \| gloo \| nccl \| cpu:gloo,cuda:nccl \| mpi, not 'smoke'"):
        choose("smoke", Ranks())
    with pytest.raises(UserError, match=r"The cpu:gloo,cuda:nccl backend needs a GPU"):
        choose(BOTH, Ranks(grouped=True))


def test_the_choice_of_a_backend_explains_itself(monkeypatch):
    ranks = Ranks(local_rank=1, local_world_size=2, grouped=True)
    for devices, wanted, expected, reason in (
        (2, "auto", (BOTH, "cuda:1"), "2 GPUs visible for 2 local ranks"),
        (0, "auto", ("gloo", "cpu"), "0 GPUs visible for 2 local ranks"),
        (2, BOTH, (BOTH, "cuda:1"), "set by ORCH_BACKEND"),
        (2, "gloo", ("gloo", "cuda:1"), "set by ORCH_BACKEND"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=devices: count)
        choice = choose(wanted, ranks)
        assert (choice.backend, str(choice.device)) == expected
        assert reason in choice.reason
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert "built without NCCL" in choose("auto", ranks).reason


def test_ranks_that_contradict_are_refused():
    assert read_ranks({}) == Ranks()
    assert read_ranks({"RANK": "1", "WORLD_SIZE": "2"}).rank == 1
    for environ in ({"WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x"}):
        with pytest.raises(UserError):
            read_ranks(environ)


@pytest.mark.parametrize("loss", [0.1 + 0.2, float("nan"), float("inf"), -1e300, None])
def test_a_beat_is_one_line_of_512_bytes(loss):
    line = encode(
        Heartbeat(step=10**12, total=10**12, phase="train", time=time.monotonic(), loss=loss, rate=1e9, eta=1e9)
    )
    assert len(line) == HEARTBEAT_BYTES
    assert line.endswith(b" \n")
    saves = {"saves", "saves_failed", "unsaved"}
    known = {"step", "total", "epoch", "phase", "time", "loss", "rate", "eta", "waited"}
    assert set(json.loads(line)) == {*known, *saves}


def test_a_reason_however_long_leaves_a_beat_its_size(tmp_path, monkeypatch):
    beats = HeartbeatFile(tmp_path / "beat")
    beats.saved()
    beats.saved('"\\\u20ac\t' * 500)
    for step in (10**12, 10**12, 10**12 + 1, 10**12 + 2):
        beats.stepped(step)
    monkeypatch.setattr(time, "monotonic", iter([0.0, 1e12 / 7, 1e12 / 7, 1e12 / 7]).__next__)
    assert list(beats.waiting([1])) == [1]
    beats.write(
        Heartbeat(step=10**12, total=10**12, epoch=10**6, phase="train", loss=-1.5e15 / 7, rate=1e9 / 7, eta=1e9 / 7)
    )
    line = (tmp_path / "beat").read_bytes()
    assert len(line) == HEARTBEAT_BYTES
    assert (json.loads(line)["saves"], json.loads(line)["saves_failed"]) == (2, 1)
    assert [json.loads(line)[name] - 10**12 for name in ("first", "second")] == [0, 1]
    beats.close()


def test_a_beat_tells_which_checkpoint_was_loaded(tmp_path):
    beats = HeartbeatFile(tmp_path / "beat")
    beats.resumed(300)
    beats.stepped(301)
    beats.write(Heartbeat(step=301, phase="train"))
    beats.close()
    told = json.loads((tmp_path / "beat").read_bytes())
    assert told["loaded"] == 300
    assert "first" not in told


def test_a_beat_tells_how_long_the_data_was_waited_for_and_not_how_long_the_step_took(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def loader():
        for batch in range(3):
            clock[0] += 2.0
            yield batch

    beats = HeartbeatFile(tmp_path / "beat")
    beats.write(Heartbeat(phase="start"))
    assert json.loads((tmp_path / "beat").read_text())["waited"] is None
    for batch in beats.waiting(loader()):
        clock[0] += 50.0
        beats.write(Heartbeat(step=batch, phase="train"))
    beats.close()
    assert json.loads((tmp_path / "beat").read_text())["waited"] == 6.0


def test_beats_are_rare_but_a_new_phase_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    beats = HeartbeatFile(tmp_path / "beat")

    def told() -> tuple[int, str]:
        values = json.loads((tmp_path / "beat").read_text())
        return values["step"], values["phase"]

    for step in range(100):
        beats.write(Heartbeat(step=step, phase="train"))
    assert told()[0] < 100 - 1
    beats.write(Heartbeat(step=100, phase="save"))
    assert told() == (100, "save")
    assert (tmp_path / "beat").stat().st_size == HEARTBEAT_BYTES
    beats.close()
    beats.write(Heartbeat(phase="done"))
    assert told() == (100, "save")


@pytest.fixture
def handlers():
    """Signal handlers and the received flag as they were, afterwards."""
    before = {signum: signal.getsignal(signum) for signum in stop.STOP_SIGNALS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
    stop._received.clear()


@pytest.mark.parametrize("signum", stop.STOP_SIGNALS)
def test_a_signal_is_agreed_on_within_a_second(handlers, monkeypatch, signum):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    assert stop.install()
    agreement = stop.Agreement()

    def step() -> bool:
        clock[0] += 0.001
        return agreement()

    assert not any(step() for _ in range(600))
    os.kill(os.getpid(), signum)
    sent = clock[0]
    while not step():
        assert clock[0] - sent < 1.0
    assert agreement()


def test_generators_come_back():
    random_state.seed_everything(5)
    cpu = torch.device("cpu")
    saved = random_state.random_state(cpu)
    first = torch.rand(3).tolist(), random.random()
    random_state.seed_everything(6)
    random_state.restore_random(saved, cpu)
    assert (torch.rand(3).tolist(), random.random()) == first


def test_weights_load_with_and_without_the_prefix_of_ddp():
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    bare, wrapped, other = nn.Linear(2, 2), Wrapped(), nn.Linear(2, 2)
    random_state.load_weights(wrapped, bare.state_dict(), "here")
    random_state.load_weights(other, wrapped.state_dict(), "here")
    assert torch.equal(bare.weight, wrapped.module.weight)
    assert torch.equal(bare.weight, other.weight)
    with pytest.raises(CheckpointError, match="here does not fit this model"):
        random_state.load_weights(nn.Linear(3, 3), bare.state_dict(), "here")


def test_a_task_file_must_say_what_to_train(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_task(tmp_path / "none.py")
    (tmp_path / "half_a_task.py").write_text("def data(options): ...\n")
    with pytest.raises(UserError, match=r"must define model\(options\)"):
        load_task(tmp_path / "half_a_task.py")


def write_mnist(folder, *, packed: bool, samples: int = 3) -> None:
    """Write four files of MNIST's format."""
    folder.mkdir(parents=True)
    for name in data.MNIST_FILES:
        images = "images" in name
        sizes = (samples, 28, 28) if images else (samples,)
        header = struct.pack(f">HBB{len(sizes)}I", 0, 8, len(sizes), *sizes)
        content = header + bytes([7]) * (samples * (784 if images else 1))
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", ["", "raw", "MNIST/raw"])
def test_mnist_is_found_where_people_have_it(tmp_path, monkeypatch, packed, inside):
    monkeypatch.setenv("ORCH_DATA_DIR", str(tmp_path / "cache"))
    source = tmp_path / "given"
    write_mnist(source / inside, packed=packed)
    before = sorted(source.rglob("*"))
    for _ in range(2):
        found = data.mnist(source)
        assert [tuple(tensor.shape) for tensor in (*found.train, *found.test)] == [(3, 1, 28, 28), (3,)] * 2
        assert found.train[0].dtype == torch.uint8
        assert found.train[1].tolist() == [7, 7, 7]
    assert sorted(source.rglob("*")) == before


def test_damaged_mnist_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("ORCH_DATA_DIR", str(tmp_path / "cache"))
    write_mnist(tmp_path / "short", packed=True)
    path = tmp_path / "short" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="train-images-idx3-ubyte"):
        data.mnist(tmp_path / "short")


def test_the_digits_are_always_split_alike():
    first, again = data.digits(), data.digits(size=28, stand_in=True)
    assert [len(first.train[-1]), len(first.test[-1])] == [1437, 360]
    assert torch.equal(first.test[-1], again.test[-1])
    assert again.train[0].shape == (1437, 1, 28, 28)
    assert again.stand_in
    assert "stand-in" in again.name


def test_words_for_people():
    assert measure("accuracy", 0.9831) == "accuracy 98.31 %"
    assert measure("loss", 0.5) == "loss 0.5000"


def test_metrics_are_json_even_of_a_diverged_loss(tmp_path):
    report = Reporter(tmp_path / "m" / "metrics.jsonl", tmp_path / "result.json", speaks=True, attempt=2)
    report.metric("train", step=1, loss=float("nan"))
    report.result({"loss": float("inf"), "step": 1})
    report.close()
    line = json.loads((tmp_path / "m" / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert (line["kind"], line["step"], line["loss"], line["attempt"]) == ("train", 1, None, 2)
    assert json.loads((tmp_path / "result.json").read_text()) == {"loss": None, "step": 1}


def test_a_checkpoint_of_something_else_is_a_sentence():
    assert random_state.part({"model": 1}, "model", "here") == 1
    with pytest.raises(CheckpointError, match="here holds no 'model', only weights"):
        random_state.part({"weights": 1}, "model", "here")


def test_a_frameworks_metrics_are_its_numbers_under_names_of_its_own() -> None:
    values = {
        "loss": torch.tensor(0.5),
        "lr": 0.1,
        "done": 3,
        "step": 7,
        "kind": 1,
        "matrix": torch.ones(2, 2),
        "who": "me",
    }
    assert numbers(values) == {"loss": 0.5, "lr": 0.1, "done": 3}


def test_why_mnist_could_not_be_downloaded_is_the_last_address_s_failure():
    tried = "Error downloading t10k:\nTried https://a/, got:\n<urlopen error [Errno 101] Network is unreachable>\n"
    last = "Tried http://b/, got:\n<urlopen error [Errno -2] Name or service not known>\n"
    assert data._why_no_download(RuntimeError(tried + last)) == "Name or service not known"
    assert data._why_no_download(RuntimeError("the disk is full.")) == "the disk is full"
