"""What a request means before anything is written: what would be shipped, and what would run here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import orch
from orchestrator.cli.render.plans import shipment_page
from orchestrator.environments.uv import find_uv
from orchestrator.errors import UsageError
from orchestrator.prepare.notes import ranks_of_profile
from orchestrator.prepare.prepare import Request, Shipment, plan_for, prepare, shipment
from orchestrator.protocol.quantities import size

JOB = """
script: train.py
notify:
- {on: [failed], command: [./tell.sh, "it's over"]}
- {webhook: "https://hooks.slack.com/services/T0/B0/secret"}
- {webhook_env: HOOK}
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    path = tmp_path / "project" / "job.yaml"
    path.write_text(JOB)
    (path.parent / "train.py").write_text("x" * 1000)
    monkeypatch.setenv("HOOK", "https://example.org/secret")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far.yaml").write_text("{kind: ssh, hosts: [n1], supervisor: me@box:2222}\n")
    return path


def test_what_is_shipped_and_what_runs_here(job: Path, tmp_path: Path) -> None:
    said = (
        """notify on failed: ./tell.sh 'it'"'"'s over'""",
        "notify on failed, succeeded: POST to hooks.slack.com",
        "notify on failed, succeeded: POST to the address in HOOK",
    )
    found = shipment(prepare(tmp_path, Request(str(job), "local")))
    assert found == Shipment(str(job.parent), 2, 1000 + len(JOB), said)
    there = shipment(prepare(tmp_path, Request(str(job), "far.yaml"))).here
    assert there == ("ssh -p 2222 me@box orch accept", *(f"{line} (there)" for line in said))


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("kind: local\nnproc_per_node: 2\n", "2 ranks of profile p"),
        ("kind: local\nnproc_per_node: 1\n", "1 rank of profile p"),
        ("kind: local\nnodes: 3\nnproc_per_node: [1, 3, 2]\n", "6 ranks on 3 nodes of profile p"),
        ("kind: local\nnproc_per_node: auto\n", "as many ranks as its node has GPUs (cores if none) of profile p"),
        ("kind: local\nnodes: 2\nnproc_per_node: auto\n",
         "as many ranks as its 2 nodes have GPUs (cores if none) of profile p"),
    ],
)  # fmt: skip
def test_the_ranks_of_a_profile_are_named(job: Path, tmp_path: Path, profile: str, says: str) -> None:
    (tmp_path / "p.yaml").write_text(profile)
    assert ranks_of_profile(prepare(tmp_path, Request(str(job), "p.yaml"))) == says


def test_an_argument_that_linux_passes_to_no_program_is_refused(job: Path, tmp_path: Path) -> None:
    job.write_text("script: train.py\n")
    with pytest.raises(UsageError, match="an argument of the program has 200,000 bytes"):
        prepare(tmp_path, Request(str(job), "local", args=("a", "x" * 200_000)))


@pytest.mark.parametrize(
    ("program", "beside", "option"),
    [
        ("add_argument('--local_rank')", "", "--local_rank"),
        ("add_argument('--local-rank')", "", "--local-rank"),
        ("add_argument('--local-rank', '--local_rank')", "", "--local-rank"),
        ("from options import parser", "add_argument('--local_rank')", "--local_rank"),
        ("from elsewhere import parser", "", "--local-rank"),
    ],
)
def test_the_local_rank_s_option_has_the_spelling_that_the_program_knows(
    job: Path, tmp_path: Path, program: str, beside: str, option: str
) -> None:
    job.write_text("script: train.py\nlocal_rank_option: --local-rank\n")
    (job.parent / "train.py").write_text(program)
    (job.parent / "options.py").write_text(beside)
    prepared = prepare(tmp_path, Request(str(job), "local"))
    assert prepared.loaded.job.local_rank_option == option
    assert plan_for(tmp_path, prepared).tasks[0].program.local_rank_option == option


def test_the_command_line_says_of_what_to_notify(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shipment(prepare(tmp_path, Request(str(job), "local", notify_on=("hung", "cancelled"))))
    assert [line.partition(":")[0] for line in found.here] == ["notify on hung, cancelled"] * 3
    job.write_text("script: train.py\n")
    request = Request(str(job), "local", notify_on=("failed",))
    with pytest.raises(UsageError, match="notify needs ORCH_NOTIFY_WEBHOOK"):
        prepare(tmp_path, request)
    monkeypatch.setenv("ORCH_NOTIFY_WEBHOOK", "https://example.org/x")
    assert shipment(prepare(tmp_path, request)).here == (
        "notify on failed: POST to the address in ORCH_NOTIFY_WEBHOOK",
    )


def test_the_dry_run_says_so(job: Path) -> None:
    run = CliRunner().invoke(orch, ["submit", str(job), "-p", "local", "--dry-run"], catch_exceptions=False)
    assert (
        f"shipped:\n  {job.parent}: 2 files, {size(1000 + len(JOB))}\nrun on this machine:\n  notify on" in run.output
    )
    as_json = CliRunner().invoke(orch, ["submit", str(job), "-p", "local", "--dry-run", "--json"])
    assert json.loads(as_json.output)["ships"]["folder"] == str(job.parent)


def test_nothing_more_than_the_code(job: Path) -> None:
    assert shipment_page(Shipment("/code", 1, 9, (), "note: not sent: x")).endswith("9 B\n  not sent: x")
    assert shipment_page(Shipment("/code", 3, 2_340_000, ())) == "shipped:\n  /code: 3 files, 2.2 MiB"


def test_what_one_may_not_expect_is_said(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    webhooks = 'notify: [{webhook: "http://example.org/x"}, {webhook_env: HOOK}, {webhook: "http://127.0.0.1:1/x"}]\n'
    job.write_text(f"script: train.py\npass_env: ['AWS_*']\n{webhooks}")
    for name, value in (
        ("AWS_REGION", "x"),
        ("AWS_SECRET_ACCESS_KEY", "abcdefgh-1"),
        ("HOOK", "http://hook.org/secret"),
    ):
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(orch, ["submit", str(job), "-p", "local", "--dry-run"], catch_exceptions=False)
    notes = [line for line in done.output.splitlines() if line.startswith("note:")]
    assert [note.split(":")[1].split(",")[0] for note in notes] == [
        " pass_env copies AWS_SECRET_ACCESS_KEY into the run's plan; list them under secrets",
        " notify sends to example.org by http",
        " notify sends to hook.org by http",
    ]
    assert "abcdefgh-1" not in done.output
    assert "hook.org/secret" not in done.output


def test_a_profile_of_the_current_folder_with_the_name_of_ones_own_is_said(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own = tmp_path / "config" / "orch" / "profiles" / "lab.yaml"
    here = tmp_path / "cluster_profiles" / "lab.yaml"
    for path in (own, here):
        path.parent.mkdir(parents=True)
        path.write_text("kind: local\n")
    done = CliRunner().invoke(orch, ["submit", str(job), "-p", "lab", "--dry-run"], catch_exceptions=False)
    assert f"note: {here.relative_to(tmp_path)} is used, and hides {own.relative_to(tmp_path)}\n" in done.output


def test_nothing_is_kept_of_documents_where_the_models_are_loaded_anyway(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, Request(str(job), "local"))
    assert not (tmp_path / "cache").exists()
    monkeypatch.delitem(sys.modules, "pydantic")
    prepare(tmp_path, Request(str(job), "local"))
    assert len(list((tmp_path / "cache" / "documents").iterdir())) == 1


def test_the_dry_run_names_every_program_that_orch_starts_here(job: Path, tmp_path: Path) -> None:
    (job.parent / ".git").mkdir()
    (job.parent / "requirements.txt").write_text("")
    job.write_text("script: train.py\nenvironment: {lock: requirements.txt}\n")
    assert shipment(prepare(tmp_path, Request(str(job), "local"))).here == (
        f"git, for the commit and the changes of {job.parent}",
        f"{find_uv()} with {sys.executable}, which reads requirements.txt",
        "the build programs of source distributions in requirements.txt, if it has any, started by uv",
    )
