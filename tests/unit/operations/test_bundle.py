"""A bundle tells what happened and gives nothing away."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import orch
from orchestrator.errors import UsageError
from orchestrator.operations.bundle import MAX_BYTES, bundle
from orchestrator.protocol.masking import looks_secret
from orchestrator.runs import leaving as module
from orchestrator.runs.leaving import unknown_secrets
from orchestrator.runs.outbox import SECRETS
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.store import RunDir
from tests.events import event

CANARIES = {
    "secret": "canary-secret-7f3k2q", "env": "canary-env-$(x) \"y\" z", "shell": "canary-shell-99aa",
    "arg": "canary-arg-1", "task": "canary-task-5", "token": "canary-gang-token", "url": "canary-userinfo",
    "bearer": "canary-bearer-12345", "assigned": "canary-assigned", "code": "canary-code",
    "weights": "canary-weights", "webhook": "canary-hook",
}  # fmt: skip
USER, HOME = "jdoe", "/home/jdoe"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run with a canary wherever one could be."""
    monkeypatch.setenv("HF_TOKEN", CANARIES["secret"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARIES["shell"])
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setattr(module.getpass, "getuser", lambda: USER)
    made = RunDir(tmp_path / "job-abc123")
    made.path.mkdir()
    job = {
        "name": "job", "args": ["--lr", "1e-3", "--api-key", CANARIES["arg"]], "secrets": ["HF_TOKEN"],
        "env": {"WANDB_API_KEY": CANARIES["env"], "PLAIN": "kept-value"},
        "notify": [{"on": ["failed"], "webhook": f"https://x/{CANARIES['webhook']}"}],
    }  # fmt: skip
    made.write("run.json", {"run_id": "job-abc123", "job": job, "job_file": f"{HOME}/work/job.yaml"})
    made.write("plan.json", {
        "job": job, "secret_names": ["HF_TOKEN"],
        "tasks": [
            {"env": job["env"], "credentials": CANARIES["token"], "run_dir": f"{HOME}/.local/state/orch/runs/job"}
        ],
    })  # fmt: skip
    made.append_event(event("snapshot", files=1, bytes=1, git=f"https://{CANARIES['url']}:pw@host/repo", diff=USER))
    (made.path / "verdict.json").write_text('{"outcome": "failed", "reason": "cut in the mid')
    node = made.node(0)
    (node / "attempt_0").mkdir(parents=True)
    (node / "task.json").write_text(json.dumps({"secrets": CANARIES["task"]}))
    (node / "events.jsonl").write_text(
        json.dumps({"kind": "rank_exit", "node": 0, "tail": [f"used {CANARIES['env']}"]}) + "\nbroken {line\n"
    )
    (node / "agent.log").write_text(f"HF_TOKEN={CANARIES['secret']} DB_PASSWORD: '{CANARIES['assigned']}'\n")
    (node / "launcher.log").write_text(f"Authorization: Bearer {CANARIES['bearer']}\n{HOME}/x owned by {USER}\n")
    lines = [f"line {number}" for number in range(1000)]
    lines[950:953] = [*(f"it printed {CANARIES[name]}" for name in ("secret", "shell", "env"))]
    (node / "attempt_0" / "rank_0.log").write_text("\n".join(lines) + "\n")
    (node / "attempt_0" / "error_0.json").write_text(json.dumps({"message": CANARIES["secret"]}))
    for name, text in (("code/train.py", "code"), ("checkpoints/step_00000001/state.pt", "weights"),
                       (SECRETS, "webhook"), ("something_new.txt", "task")):  # fmt: skip
        (made.path / name).parent.mkdir(parents=True, exist_ok=True)
        (made.path / name).write_text(CANARIES[text])
    return made


def content_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            files[member.name.partition("/")[2]] = file.read().decode()
    return files


def test_no_canary_anywhere_in_the_archive(run: RunDir, tmp_path: Path) -> None:
    _, members = bundle(run, tmp_path / "out.tar.gz")
    whole = gzip.decompress((tmp_path / "out.tar.gz").read_bytes())
    for name, canary in CANARIES.items():
        for form in (canary, json.dumps(canary)[1:-1]):
            assert form.encode() not in whole, name
    assert b"canary-" not in whole
    assert b"jdoe" not in whole
    assert (tmp_path / "out.tar.gz").stat().st_mode & 0o777 == 0o600
    assert [name for name, _ in members] == list(content_of(tmp_path / "out.tar.gz"))


def test_what_helps_is_there(run: RunDir, tmp_path: Path) -> None:
    bundle(run, tmp_path / "out.tar.gz")
    files = content_of(tmp_path / "out.tar.gz")
    assert set(files) == {
        "about.json", "run.json", "plan.json", "verdict.json", "checkpoints.json", "events.jsonl", "nodes/0/agent.log",
        "nodes/0/events.jsonl", "nodes/0/launcher.log", "nodes/0/attempt_0/rank_0.log",
        "nodes/0/attempt_0/error_0.json",
    }  # fmt: skip
    record = json.loads(files["run.json"])
    assert record["job"]["secrets"] == ["HF_TOKEN"]
    assert record["job"]["env"] == {"WANDB_API_KEY": "***", "PLAIN": "kept-value"}
    assert record["job"]["args"] == ["--lr", "1e-3", "--api-key", "***"]
    assert record["job_file"] == "~/work/job.yaml"
    assert files["nodes/0/attempt_0/rank_0.log"].count("\n") == 200
    assert files["nodes/0/attempt_0/rank_0.log"].endswith("line 999\n")
    assert files["nodes/0/launcher.log"].splitlines()[1] == "~/x owned by USER"
    assert files["verdict.json"].startswith('{"outcome": "failed"')
    about = json.loads(files["about.json"])
    assert {"orch", "python", "run_id"} <= set(about)
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert {(member.uname, member.uid, member.mtime) for member in archive} == {("", 0, 0)}


def test_a_secret_that_is_not_set_here_is_named(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown_secrets(run) == []
    monkeypatch.delenv("HF_TOKEN")
    assert unknown_secrets(run) == ["HF_TOKEN"]
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "root"))
    (tmp_path / "root" / "runs").mkdir(parents=True)
    (tmp_path / "root" / "runs" / run.run_id).symlink_to(run.path)
    done = CliRunner().invoke(orch, ["bundle", run.run_id, "-o", str(tmp_path / "out.tar.gz")], catch_exceptions=False)
    assert "HF_TOKEN: not set in this shell, so orch can't mask this secret in the run's output" in done.output


def test_a_secret_that_is_kept_for_messages_is_taken_out_though_it_is_not_set_here(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    run.write(SECRETS, {"HF_TOKEN": CANARIES["secret"]}, private=True)
    assert unknown_secrets(run) == []
    bundle(run, tmp_path / "out.tar.gz")
    assert b"canary-" not in gzip.decompress((tmp_path / "out.tar.gz").read_bytes())


def test_an_existing_file_is_kept(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "out.tar.gz").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        bundle(run, tmp_path / "out.tar.gz")
    with pytest.raises(UsageError, match="can't be written"):
        bundle(run, tmp_path / "absent" / "out.tar.gz")


def test_an_empty_run_makes_a_bundle_too(tmp_path: Path) -> None:
    empty = RunDir(tmp_path / "job-empty")
    empty.path.mkdir()
    assert [name for name, _ in bundle(empty, tmp_path / "out.tar.gz")[1]] == ["about.json", "checkpoints.json"]
    (empty.path / "plan.json").write_text("{ not json")
    (empty.path / "run.json").write_bytes(b"\xff\xfe[")
    bundle(empty, tmp_path / "again.tar.gz")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("AWS_SECRET_ACCESS_KEY", True), ("PGPASSWORD", True), ("apikey", True), ("SSH_KEY", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", True), ("--token", True), ("webhook", True), ("X-Auth", True),
        ("TOKENIZERS_PARALLELISM", False), ("PATH", False), ("MONKEY", False), ("keep", False), ("AUTHOR", False),
        ("OMP_NUM_THREADS", False), ("attempt", False),
    ],
)  # fmt: skip
def test_which_names_look_secret(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_plain_words_stay() -> None:
    redact = Redaction(frozenset({"SHORT_KEY": "abc"}.items()), "/root", "root")
    assert redact.text("ValueError: API_TOKEN=x1 a=b=MY_KEY: 'x 2' c") == "ValueError: API_TOKEN=*** a=b=MY_KEY: *** c"
    text = "step 3: loss=0.5 root owns /rooted and /root/x; abc; key SHORT_KEY=abc; --lr 0.1 --token t0k"
    assert (
        redact.text(text) == "step 3: loss=0.5 root owns /rooted and ~/x; abc; key SHORT_KEY=***; --lr 0.1 --token ***"
    )


@pytest.mark.parametrize(
    "line", ["a" * (1 << 20), "-" * (1 << 20), "a=" * (1 << 19), "://" * (1 << 18), " " * (1 << 20), "a\t" * (1 << 18)]
)
@pytest.mark.timeout(60)  # with a pattern that tries again at every place it would be hours
def test_long_lines_are_read_through_once(line: str) -> None:
    assert len(Redaction(frozenset({"A_TOKEN": "x" * 20}.items()), "/home/someone", "someone").text(line)) <= len(line)


def test_a_huge_log_is_cut(run: RunDir, tmp_path: Path) -> None:
    log = run.node(0) / "attempt_0" / "rank_1.log"
    log.write_bytes(b"x" * (6 << 20))
    members = dict(bundle(run, tmp_path / "out.tar.gz")[1])
    assert members["nodes/0/attempt_0/rank_1.log"] == 4 << 20


def test_half_of_a_secret_is_not_the_beginning_of_a_file_that_is_cut(run: RunDir, tmp_path: Path) -> None:
    line = f"it has {CANARIES['secret']}\n"
    rest = "x" * (MAX_BYTES - 13) + "\n"  # so that the archive's part begins in the middle of the secret
    (run.node(0) / "agent.log").write_text(line + rest)
    (run.node(0) / "attempt_0/rank_0.log").write_text(line + rest)
    bundle(run, tmp_path / "out.tar.gz")
    content = content_of(tmp_path / "out.tar.gz")
    assert [len(content[f"nodes/0/{name}"]) for name in ("agent.log", "attempt_0/rank_0.log")] == [len(rest)] * 2
