"""Others' checkpoints, as torch and safetensors write them: found by step, and never when torn."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed import checkpoint as dcp

from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.checkpoints.search import Saved, Sought, at, files_of, find_saved, look, newest_first
from orchestrator.protocol.checkpoints.weight_files import is_whole

WEIGHTS = {"weight": torch.arange(100.0), "bias": torch.zeros(3)}


def hugging_face(folder: Path, step: int) -> Path:
    """A folder as Hugging Face's Trainer lays it, its weights in two shards."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for number, name in enumerate(WEIGHTS):
        save_file({name: WEIGHTS[name]}, path / f"model-{number}.safetensors")
    index = {name: f"model-{number}.safetensors" for number, name in enumerate(WEIGHTS)}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    torch.save({"state": 1}, path / "optimizer.pt")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    return path


def lightning(folder: Path, step: int) -> Path:
    path = folder / "lightning_logs/version_0/checkpoints" / f"epoch=3-step={step}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"global_step": step, "state_dict": WEIGHTS}, path)
    return path


def distributed(folder: Path, step: int) -> Path:
    path = folder / f"dcp/step-{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        dcp.save({"model": WEIGHTS}, checkpoint_id=path, no_dist=True)
    return path


def deepspeed(folder: Path, step: int) -> Path:
    """A folder as DeepSpeed lays it: a tag with the states of two ranks, and `latest` beside it."""
    path = folder / f"ds/global_step{step}"
    path.mkdir(parents=True)
    torch.save({"module": WEIGHTS}, path / "mp_rank_00_model_states.pt")
    for rank in range(2):
        torch.save({"optimizer": 1}, path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (path.parent / "latest").write_text(path.name)
    return path


def plain(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(WEIGHTS, folder / f"model_{step}.pt")
    return folder / f"model_{step}.pt"


WRITERS = {
    Format.HF: hugging_face, Format.LIGHTNING: lightning, Format.DCP: distributed, Format.DEEPSPEED: deepspeed,
    Format.FILES: plain,
}  # fmt: skip


def test_each_format_of_others_is_tested() -> None:
    assert {*WRITERS, Format.ORCH} == {*Format}


@pytest.fixture(params=WRITERS, ids=str)
def kind(request: pytest.FixtureRequest) -> Format:
    return Format(request.param)


def found(folder: Path) -> list[tuple[str, int, str]]:
    return sorted((each.format, each.step, os.path.relpath(each.path, folder)) for each in find_saved([str(folder)]))


def test_each_framework_s_checkpoints_are_found_with_their_steps(tmp_path: Path, kind: Format) -> None:
    paths = {step: WRITERS[kind](tmp_path / "out", step) for step in (100, 200)}
    assert found(tmp_path) == [(kind, step, str(path.relative_to(tmp_path))) for step, path in paths.items()]


def test_a_torn_one_never_counts(tmp_path: Path, kind: Format) -> None:
    path = WRITERS[kind](tmp_path, 100)
    ends = (".pt", ".metadata", ".safetensors")
    weights = path if path.is_file() else max(path.rglob("*.*"), key=lambda each: each.name.endswith(ends))
    whole = weights.read_bytes()
    for size in (0, *([1, len(whole) // 2, len(whole) - 1] if kind is not Format.DCP else [])):
        weights.write_bytes(whole[:size])
        assert found(tmp_path) == [], size
    weights.write_bytes(whole)
    assert [step for _, step, _ in found(tmp_path)] == [100]


@pytest.mark.parametrize(
    "tear",
    [
        lambda path: (path / "trainer_state.json").unlink(),
        lambda path: (path / "trainer_state.json").write_text('{"global_step": 1'),
        lambda path: (path / "trainer_state.json").write_text('{"global_step": 99}'),
        lambda path: (path / "model-1.safetensors").unlink(),
        lambda path: (path / "model-1.safetensors").write_bytes((path / "model-1.safetensors").read_bytes()[:-1]),
        lambda path: (path / "model.safetensors.index.json").write_text("{"),
    ],
)
def test_hugging_face_s_folder_counts_only_whole(tmp_path: Path, tear: Callable[[Path], object]) -> None:
    path = hugging_face(tmp_path, 100)
    tear(path)
    assert found(tmp_path) == []


def test_what_came_with_the_code_or_is_nobody_s_checkpoint_is_left_out(tmp_path: Path) -> None:
    old = hugging_face(tmp_path / "pretrained", 900)
    for path in old.iterdir():
        os.utime(path, (1, 1))
    plain(tmp_path / "data", 1)
    plain(tmp_path / "env/lib", 1)
    (tmp_path / "env/pyvenv.cfg").touch()
    plain(tmp_path / ".cache", 1)
    (tmp_path / "elsewhere").symlink_to(old)
    (tmp_path / "log.txt").write_text("step 1000")
    assert find_saved([str(tmp_path), "", str(tmp_path / "missing")], since=1000.0) == []
    assert [each.step for each in find_saved([str(tmp_path)])] == [900]


def test_what_the_code_brought_along_is_known_by_its_size_and_time(tmp_path: Path) -> None:
    shipped, written = plain(tmp_path, 1), plain(tmp_path, 2)
    info = shipped.stat()
    before = {str(shipped): [info.st_size, info.st_mtime_ns]}
    assert [each.path for each in find_saved([str(tmp_path)], before=before)] == [str(written)]
    shipped.touch()
    assert len(find_saved([str(tmp_path)], before=before)) == 2


def test_lightning_tells_its_step_in_the_file_or_in_its_name(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "global_step": 70_000, "state_dict": WEIGHTS}, tmp_path / "last.ckpt")
    torch.save(WEIGHTS, tmp_path / "epoch=3-val_loss=0.12.ckpt")
    torch.save(WEIGHTS, tmp_path / "loss=-1.5e-3.ckpt")
    sharded = tmp_path / "epoch=0-step=9.ckpt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": WEIGHTS}, checkpoint_id=sharded, no_dist=True)
    saved = {os.path.basename(each.path): each for each in find_saved([str(tmp_path)])}
    assert {name: (each.format, each.step, each.metric) for name, each in saved.items()} == {
        "last.ckpt": (Format.LIGHTNING, 70_000, {}),
        "epoch=3-val_loss=0.12.ckpt": (Format.LIGHTNING, 3, {"val_loss": 0.12}),
        "loss=-1.5e-3.ckpt": (Format.LIGHTNING, -1, {"loss": -0.0015}),
        "epoch=0-step=9.ckpt": (Format.LIGHTNING, 9, {}),
    }
    (sharded / "__0_0.distcp").unlink()
    assert len(find_saved([str(tmp_path)])) == 3


def test_the_trainer_s_own_file_tells_the_metric(tmp_path: Path) -> None:
    path = hugging_face(tmp_path, 100)

    def told(**state: object) -> dict[str, float]:
        (path / "trainer_state.json").write_text(json.dumps({"global_step": 100, **state}))
        return find_saved([str(tmp_path)])[0].metric

    log = [{"eval_loss": 2.0}, {"eval_loss": 0.5, "eval_f1": 1, "eval_runtime": 9.0, "epoch": 1}, {"loss": 0.1}]
    assert told(log_history=log) == {"eval_loss": 0.5, "eval_f1": 1.0}
    assert told(best_metric=0.4, best_model_checkpoint="out/checkpoint-100") == {"best_metric": 0.4}
    assert told(best_metric=0.4, best_model_checkpoint="out/checkpoint-90", log_history="?") == {}
    assert told(log_history=[{"eval_loss": 10**400}, 3, {"eval_loss": "low"}]) == {}


def test_deepspeed_s_folder_counts_once_latest_names_it_or_a_later_one(tmp_path: Path) -> None:
    first, second = deepspeed(tmp_path, 50), deepspeed(tmp_path, 100)
    assert [step for _, step, _ in found(tmp_path)] == [50, 100]
    latest = first.parent / "latest"
    latest.write_text("global_step50")  # the second one is being written: all its files so far are whole
    assert [step for _, step, _ in found(tmp_path)] == [50]
    latest.unlink()
    assert found(tmp_path) == []
    latest.write_text("global_step100")
    saved = newest_first(find_saved([str(tmp_path)]))[0]
    assert set(files_of(saved)) == {"latest", *(f"{second.name}/{each.name}" for each in second.iterdir())}


def test_megatron_s_folder_has_its_tracker_with_it_wherever_it_is_copied(tmp_path: Path) -> None:
    for name in ("iter_0000010/mp_rank_00/model_optim_rng.pt", "latest_checkpointed_iteration.txt"):
        write(tmp_path / name)
    (saved,) = find_saved([str(tmp_path)])
    assert set(files_of(saved)) == {"iter_0000010/mp_rank_00/model_optim_rng.pt", "latest_checkpointed_iteration.txt"}


def test_all_parts_of_a_distributed_one_have_to_be_there(tmp_path: Path) -> None:
    path = distributed(tmp_path, 10)
    part = path / "__0_0.distcp"
    whole = part.read_bytes()
    for content in (whole[:-1], b""):
        part.write_bytes(content)
        assert found(tmp_path) == []
    part.unlink()
    (path / "__1_0.distcp").write_bytes(whole)
    assert found(tmp_path) == []


def test_accelerate_s_folder_is_one_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints/checkpoint_3"
    path.mkdir(parents=True)
    save_file(WEIGHTS, path / "model.safetensors")
    torch.save(WEIGHTS, path / "optimizer.bin")
    (path / "random_states_0.pkl").write_bytes(b"\x80\x04N.")
    assert [(kind, name) for kind, _, name in found(tmp_path)] == [(Format.FILES, "checkpoints/checkpoint_3")]
    assert set(files_of(find_saved([str(tmp_path)])[0])) == {f"checkpoint_3/{each.name}" for each in path.iterdir()}


def test_a_job_says_which_format_counts_and_where(tmp_path: Path) -> None:
    hugging_face(tmp_path / "out/a", 100)
    hugging_face(tmp_path / "out/b", 200)
    lightning(tmp_path, 300)
    (tmp_path / "state_400.tar").write_bytes(b"1")
    (tmp_path / "mine_5").mkdir()
    torch.save(WEIGHTS, tmp_path / "mine_5/model.pt")

    def names(kind: str, glob: str = "") -> list[str]:
        saved = find_saved([str(tmp_path)], sought=Sought(kind, glob))
        return sorted(os.path.relpath(each.path, tmp_path) for each in saved)

    of_lightning = "lightning_logs/version_0/checkpoints/epoch=3-step=300.ckpt"
    assert names("hf") == ["out/a/checkpoint-100", "out/b/checkpoint-200"]
    assert names("auto", "out/b/") == names("hf", "checkpoint-2*") == ["out/b/checkpoint-200"]
    assert names("lightning") == names("auto", "*.ckpt") == [of_lightning]
    assert names("deepspeed") == names("hf", "*.ckpt") == []
    assert names("files", "state_*.tar") == ["state_400.tar"]
    assert names("auto", "state_*.tar") == []
    assert names("files", "mine_*/") == ["mine_5"]


def test_the_newest_has_the_highest_step_else_the_latest_time(tmp_path: Path) -> None:
    later = Saved(Format.FILES, "/model_2026.pt", 2026, 9.0)
    earlier = Saved(Format.FILES, "/model_2027.pt", 2027, 8.0)
    step = Saved(Format.HF, "/checkpoint-5", 5, 1.0)
    assert newest_first([earlier, step, later]) == [step, later, earlier]
    assert at(str(tmp_path)) is None
    path = hugging_face(tmp_path, 7)
    assert at(str(tmp_path)) == at(str(path)) == find_saved([str(tmp_path)])[0]
    file = plain(tmp_path, 1)
    assert (saved := at(str(file))) is not None
    assert (saved.path, saved.step) == (str(file), 1)
    file.write_bytes(file.read_bytes()[:-1])
    assert at(str(file)) is None


def test_any_file_that_changes_is_a_sign_but_for_what_is_torn_or_a_crash_leaves(tmp_path: Path) -> None:
    def changed(name: str, content: bytes = b"1") -> bool:
        path = tmp_path / name
        path.write_bytes(content)
        os.utime(path, (5e9, 5e9))
        seen = look([str(tmp_path)]).changed == 5e9
        path.unlink()
        return seen

    assert changed("state.json")
    assert changed("events.out.tfevents.1")
    assert not changed("model.pt", b"PK torn")
    assert not changed("core.4711")


# What well-known repositories write: (repository, the files, [(the path that is found, its step)]).
OF_REPOSITORIES = [
    ("timm", ["out/checkpoint-10.pth.tar"], [("out/checkpoint-10.pth.tar", 10)]),
    ("timm, last and best", ["last.pth.tar", "model_best.pth.tar"], [("last.pth.tar", -1), ("model_best.pth.tar", -1)]),
    ("pytorch/examples imagenet", ["checkpoint.pth.tar"], [("checkpoint.pth.tar", -1)]),
    ("MoCo", ["checkpoint_0199.pth.tar"], [("checkpoint_0199.pth.tar", 199)]),
    ("torchvision references", ["model_7.pth", "checkpoint.pth"], [("checkpoint.pth", -1), ("model_7.pth", 7)]),
    ("detectron2", ["output/model_0004999.pth", "output/last_checkpoint"], [("output/model_0004999.pth", 4999)]),
    ("detectron2, at its end", ["output/model_final.pth"], [("output/model_final.pth", -1)]),
    ("mmengine", ["work_dirs/x/iter_1000.pth", "work_dirs/x/last_checkpoint"], [("work_dirs/x/iter_1000.pth", 1000)]),
    ("fairseq", ["checkpoint_last.pt", "checkpoint1.pt"], [("checkpoint1.pt", 1), ("checkpoint_last.pt", -1)]),
    ("yolov5", ["runs/train/exp/weights/last.pt"], [("runs/train/exp/weights/last.pt", -1)]),
    ("open_clip", ["logs/x/checkpoints/epoch_3.pt"], [("logs/x/checkpoints/epoch_3.pt", 3)]),
    ("DINO", ["checkpoint0020.pth"], [("checkpoint0020.pth", 20)]),
    ("DINOv2", ["model_0001249.rank_0.pth", "last_checkpoint.rank_0"], [("model_0001249.rank_0.pth", 1249)]),
    ("MAE", ["output_dir/checkpoint-19.pth"], [("output_dir/checkpoint-19.pth", 19)]),
    ("nanoGPT", ["out/ckpt.pt"], [("out/ckpt.pt", -1)]),
    ("stylegan3", ["network-snapshot-000200.pkl"], [("network-snapshot-000200.pkl", 200)]),
    ("guided-diffusion", ["model010000.pt", "ema_0.9999_010000.pt", "opt010000.pt"], [
        ("ema_0.9999_010000.pt", 10_000), ("model010000.pt", 10_000), ("opt010000.pt", 10_000),
    ]),
    ("hifigan", ["cp/g_00002500", "cp/do_00002500"], [("cp/do_00002500", 2500), ("cp/g_00002500", 2500)]),
    ("tacotron2, waveglow", ["checkpoint_1000", "waveglow_2000"], [("checkpoint_1000", 1000), ("waveglow_2000", 2000)]),
    ("vits", ["logs/G_800.pth", "logs/D_800.pth"], [("logs/D_800.pth", 800), ("logs/G_800.pth", 800)]),
    ("ESPnet", ["exp/1epoch.pth", "exp/valid.acc.best.pth"], [("exp/1epoch.pth", 1), ("exp/valid.acc.best.pth", -1)]),
    ("ESPnet 1", ["snapshot.ep.10"], [("snapshot.ep.10", 10)]),
    ("SpeechBrain", ["save/CKPT+2026/CKPT.yaml", "save/CKPT+2026/model.ckpt"], [("save/CKPT+2026", 2026)]),
    ("NeMo", ["checkpoints/m.nemo"], [("checkpoints/m.nemo", -1)]),
    ("SlowFast", ["checkpoints/checkpoint_epoch_00005.pyth"], [("checkpoints/checkpoint_epoch_00005.pyth", 5)]),
    ("audiocraft, demucs", ["checkpoint_12.th"], [("checkpoint_12.th", 12)]),
    ("composer", ["ep1-ba10-rank0.pt"], [("ep1-ba10-rank0.pt", 10)]),
    ("nerfstudio", ["nerfstudio_models/step-000002000.ckpt"], [("nerfstudio_models/step-000002000.ckpt", 2000)]),
    ("gaussian-splatting", ["chkpnt7000.pth"], [("chkpnt7000.pth", 7000)]),
    ("Paddle", ["4.pdparams", "4.pdopt"], [("4.pdopt", 4), ("4.pdparams", 4)]),
    ("Keras", ["model.05.keras", "w.weights.h5"], [("model.05.keras", 5), ("w.weights.h5", -1)]),
    ("stable-baselines3", ["rl_model_1000_steps.zip"], [("rl_model_1000_steps.zip", 1000)]),
    ("TensorFlow", ["model.ckpt-90.index", "model.ckpt-90.data-00000-of-00001", "checkpoint"], [
        ("model.ckpt-90.data-00000-of-00001", 90), ("model.ckpt-90.index", 90),
    ]),
    ("flax", ["checkpoint_400"], [("checkpoint_400", 400)]),
    ("orbax", ["run/400/_CHECKPOINT_METADATA", "run/400/default/manifest.ocdbt"], [("run/400", 400)]),
    ("orbax, a folder with the suffix", ["m.orbax/checkpoint"], [("m.orbax", -1)]),
    ("orbax, not complete", ["400.orbax-checkpoint-tmp-7/_CHECKPOINT_METADATA"], []),
    ("Megatron", ["iter_0000010/mp_rank_00/model_optim_rng.pt", "latest_checkpointed_iteration.txt"], [
        ("iter_0000010", 10),
    ]),
    ("Megatron, not complete", ["iter_0000030/mp_rank_00/m.pt", "latest_checkpointed_iteration.txt"], []),
    ("transformers, save_pretrained", ["final/model.safetensors.index.json", "final/model-0.safetensors"], [
        ("final", -1),
    ]),
    ("transformers, a shard is missing", ["final/model.safetensors.index.json", "final/other.safetensors"], []),
    ("no checkpoint", ["log.txt", "last_checkpoint", "events.out.tfevents.1", "a.zip", "g_", "ckpt", "x.index"], []),
]  # fmt: skip


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".index.json"):
        path.write_text(json.dumps({"weight_map": {"a": "model-0.safetensors"}}))
    elif path.suffix == ".safetensors":
        save_file(WEIGHTS, path)
    elif path.suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", "{}")
    elif path.suffix in (".index", ".h5", ".nemo"):
        path.write_bytes(b"x")
    else:
        path.write_text("20") if path.suffix == ".txt" else torch.save(WEIGHTS, path)


@pytest.mark.parametrize(
    ("files", "expected"), [row[1:] for row in OF_REPOSITORIES], ids=[row[0] for row in OF_REPOSITORIES]
)
def test_what_well_known_repositories_write_is_found(
    tmp_path: Path, files: list[str], expected: list[tuple[str, int]]
) -> None:
    for name in files:
        write(tmp_path / name)
    assert sorted((path, step) for _, step, path in found(tmp_path)) == expected


@pytest.mark.parametrize(
    "name", ["a.pth.tar", "a.th", "a.keras", "a.pyth", "do_00002500", "a.bin", "rl_model_1_steps.zip"]
)
def test_a_torn_zip_of_any_name_never_counts(tmp_path: Path, name: str) -> None:
    torch.save(WEIGHTS, tmp_path / name)
    assert len(found(tmp_path)) == 1
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    assert found(tmp_path) == []


# -- whatever lies there

NAMES = st.sampled_from([
    "checkpoint-100", "checkpoint-7", "trainer_state.json", "optimizer.pt", "model.safetensors.index.json", "a.ckpt",
    "a.pth.tar", "g_00000001",
    "_METADATA", "CKPT.yaml", "m.orbax", "iter_0000010", "mp_rank_00", "latest_checkpointed_iteration.txt",
    "step=1.ckpt", "global_step5", "latest", "mp_rank_00_model_states.pt", ".metadata", "__0_0.distcp", "x.bin",
    "step_00000001", "COMMIT", "random_states_0.pkl", "model.safetensors", "odd \udcff\n=", "data", "b.npz", "c.joblib",
])  # fmt: skip
CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([
        b'{"global_step": 100, "log_history": [[], {"eval_x": 1e999}]}', b'{"weight_map": [1]}', b"[" * 50_000,
        b"PK\x05\x06" + bytes(18), b"global_step5\n", b"cos\nsystem\n(S'touch owned'\ntR.", b"__0_0.distcp.",
    ]),
)  # fmt: skip
TREES = st.recursive(CONTENTS, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=12)


def lay(path: Path, tree: object) -> None:
    if isinstance(tree, dict):
        path.mkdir()
        for name, inner in tree.items():
            lay(path / name, inner)
    elif isinstance(tree, bytes):
        path.write_bytes(tree)


@pytest.fixture(scope="module")
def never_unpickled() -> Iterator[None]:
    """A pickle that is run would make a file here."""
    yield
    assert not Path("owned").exists()


@given(tree=st.dictionaries(NAMES, TREES, max_size=5), kind=st.sampled_from(["auto", "files", "hf"]))
@pytest.mark.usefixtures("never_unpickled")
def test_no_folder_makes_them_raise(tmp_path_factory: pytest.TempPathFactory, tree: object, kind: str) -> None:
    top = tmp_path_factory.mktemp("junk") / "top"
    lay(top, tree)
    for sought in (Sought(kind), Sought(kind, "check*"), Sought("files", "check*/")):
        for saved in newest_first(find_saved([str(top)], sought=sought)):
            assert all(isinstance(value, float) for value in saved.metric.values())
            assert os.path.basename(saved.path) in next(iter(files_of(saved)))
            at(saved.path)


def test_a_folder_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    path = plain(tmp_path, 7)
    assert find_saved([str(tmp_path), str(tmp_path)]) == [Saved(Format.FILES, str(path), 7, path.stat().st_mtime)]


@given(st.binary(max_size=200), st.sampled_from((".pt", ".safetensors", ".bin", ".npz", ".ckpt")))
def test_no_contents_make_it_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(data)
    assert isinstance(is_whole(str(path)), bool)
    header = len(data).to_bytes(8, "little") + data
    path.write_bytes(header)
    assert isinstance(is_whole(str(path)), bool)
