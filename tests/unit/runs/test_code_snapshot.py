"""The copy of the code folder: what is in it, what is left out, what is refused."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.runs.files import code_snapshot, ignore_rules
from orchestrator.runs.files.code_snapshot import Git, Snapshot, git_state, measure, take
from orchestrator.runs.files.ignore_rules import left_out_words, named_files

MB = 1 << 20


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "pkg").mkdir()
    (folder / "pkg" / "a.py").write_text("x\n")
    return folder


def snap(code: Path, name: str = "copy", ignore: str = ".orchignore", limit: int = MB) -> tuple[Snapshot, set[str]]:
    target = code.parent / name
    taken = take(code, target, ignore, limit, ())
    found = {p.relative_to(target).as_posix() for p in target.rglob("*") if not p.is_dir() or p.is_symlink()}
    return taken, found


def test_a_copy_with_its_executable_bits(code: Path) -> None:
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o750)
    (code / "empty").mkdir()
    taken, found = snap(code)
    assert found == {"train.py", "pkg/a.py", "run.sh"}
    assert (taken.files, taken.bytes) == (3, 9 + 2 + 10)
    copy = code.parent / "copy"
    assert os.access(copy / "run.sh", os.X_OK)
    assert not os.access(copy / "train.py", os.X_OK)
    assert (copy / "empty").is_dir()


def test_what_is_left_out(code: Path) -> None:
    for name in (
        ".git/x",
        "__pycache__/x",
        "pkg/__pycache__/y",
        ".venv/x",
        "venv/x",
        "node_modules/x",
        "a.pyc",
        "data/b",
    ):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()
    (code / ".gitignore").write_text("data/\n")
    assert snap(code)[1] == {"train.py", "pkg/a.py", ".gitignore"}
    (code / ".orchignore").write_text("# comment\n/pkg\n!venv/\n*.py\n!train.py\n")
    assert snap(code, "two")[1] == {"train.py", "venv/x", ".gitignore", ".orchignore"}
    (code / ".orchignore").write_text("!data/\n")
    assert snap(code, "three")[1] == {"train.py", "pkg/a.py", "data/b", ".gitignore", ".orchignore"}
    (code / "other").write_text("*\n!train.py\n")
    assert snap(code, "five", "other")[1] == {"train.py"}
    (code / "other").write_text("x\n")
    assert snap(code, "six", "other")[1] == {"train.py", "pkg/a.py", ".gitignore", ".orchignore", "other"}
    with pytest.raises(UsageError, match="no such ignore file"):
        snap(code, "four", "missing")


def test_links(code: Path) -> None:
    outside = code.parent / "outside.txt"
    outside.write_text("outside")
    (code / "out").symlink_to(outside)
    (code / "in").symlink_to("pkg/a.py")
    (code / "absolute").symlink_to(code / "pkg")
    (code / "dangling").symlink_to("nowhere")
    (code / "loop").symlink_to("loop")
    (code / "venv").mkdir()
    (code / "venv" / "tool").write_text("tool")
    (code / "tool").symlink_to("venv/tool")
    _, found = snap(code)
    copy = code.parent / "copy"
    assert found == {"train.py", "pkg/a.py", "out", "in", "absolute", "tool"}
    assert not (copy / "out").is_symlink()
    assert (copy / "out").read_text() == "outside"
    assert (copy / "tool").read_text() == "tool"
    assert (copy / "in").readlink() == Path("pkg/a.py")
    assert (copy / "absolute").readlink() == Path("pkg")


@pytest.mark.parametrize("lines", ["", "data_link/\n", "data_link\n"])
def test_a_link_to_a_folder_that_is_not_sent_is_left_out_with_a_note(code: Path, lines: str) -> None:
    outside = code.parent / "imagenet"
    outside.mkdir()
    (outside / "x.bin").touch()
    (code / "data_link").symlink_to(outside)
    (code / "runs/1").mkdir(parents=True)
    (code / "latest").symlink_to("runs/1")
    (code / "all").symlink_to("runs")
    (code / ".gitignore").write_text("runs/\n")
    (code / ".orchignore").write_text(lines)
    taken, found = snap(code)
    assert found == {"train.py", "pkg/a.py", ".gitignore", ".orchignore"}
    assert sorted(taken.ignored) == ["all", "data_link", "latest", "runs/"]
    inside, link = [("all", str(code / "runs")), ("latest", str(code / "runs/1"))], ("data_link", str(outside))
    assert sorted(taken.left_out.links) == sorted(inside if lines else [link, *inside])
    note = left_out_words(asdict(taken.left_out))
    assert ("data_link (to " in note) is not bool(lines)
    assert "links to folders are not sent" in note


def test_what_is_no_file(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(code / "pipe")
    monkeypatch.chdir(code)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert snap(code)[1] == {"train.py", "pkg/a.py"}


def test_too_large_is_refused_before_anything_is_copied(code: Path) -> None:
    (code / "data").mkdir()
    for i, size in enumerate((300_000, 200_000)):
        (code / "data" / str(i)).write_bytes(bytes(size))
    (code / "model.bin").write_bytes(bytes(400_000))
    with pytest.raises(UsageError) as caught:
        snap(code, limit=800_000)
    message = str(caught.value)
    assert "largest: data/ (488.3 KiB), model.bin (390.6 KiB), train.py (9 B)" in message
    assert ".orchignore" in message
    assert "code.max_size" in message
    assert not (code.parent / "copy").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_are_named(code: Path) -> None:
    (code / "secret").touch(mode=0o000)
    with pytest.raises(UsageError, match="code/secret can't be read: Permission denied"):
        snap(code)


def test_a_failing_copy_leaves_nothing(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orchestrator.runs.files.code_snapshot.os.fdopen", full)
    with pytest.raises(UsageError, match="can't be copied into the snapshot: No space left"):
        snap(code)
    assert not (code.parent / "copy").exists()


def test_folders_that_can_not_be(code: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        take(code / "no", code.parent / "copy", ".orchignore", MB)
    with pytest.raises(UsageError, match="not empty"):
        take(code, code, ".orchignore", MB)
    with pytest.raises(UsageError, match="can't be written"):
        take(code, code / "train.py" / "x", ".orchignore", MB)


def test_a_destination_inside_the_folder_is_not_copied_into_itself(code: Path) -> None:
    taken = take(code, code / "runs" / "1", ".orchignore", MB)
    assert taken.files == 2
    assert not (code / "runs" / "1" / "runs" / "1").exists()


def test_the_hash_knows_names_modes_and_contents_and_nothing_else(code: Path) -> None:
    first = snap(code, "1")[0].sha256
    os.utime(code / "train.py", (1, 1))
    assert snap(code, "2")[0].sha256 == first
    hashes = {first}
    (code / "train.py").chmod(0o755)
    hashes.add(snap(code, "3")[0].sha256)
    (code / "train.py").write_text("print(2)\n")
    hashes.add(snap(code, "4")[0].sha256)
    (code / "train.py").rename(code / "train2.py")
    hashes.add(snap(code, "5")[0].sha256)
    assert len(hashes) == 4


def test_odd_names(code: Path) -> None:
    for name in ("a b", "new\nline", "ünï", os.fsdecode(b"\xff\xfe")):
        (code / name).write_text(name.encode("utf-8", "surrogateescape").hex())
    assert snap(code)[0].files == 6


def git(folder: Path, *args: str) -> str:
    identity = [
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "commit.gpgsign=false",
    ]
    done = subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_git(code: Path, tmp_path: Path) -> None:
    assert git_state(code) == Git()
    git(code, "init")
    assert git_state(code) == Git(None, dirty=True, diff=None, untracked=("pkg/", "train.py"))
    git(code, "add", ".")
    git(code, "commit", "-m", "x")
    head = git(code, "rev-parse", "HEAD")
    assert git_state(code) == Git(head)
    (code / "new file").touch()
    assert git_state(code) == Git(head, dirty=True, untracked=("new file",))
    git(code, "mv", "train.py", "moved.py")
    state = git_state(code)
    assert (state.commit, state.dirty, state.untracked) == (head, True, ("new file",))
    assert state.diff is not None
    (code / "moved.py").write_text("else\n")
    assert git_state(code).diff != state.diff
    taken, _ = snap(code)
    assert (taken.git, taken.dirty) == (head, True)


def test_no_program_of_the_repository_is_run(code: Path, tmp_path: Path) -> None:
    git(code, "init")
    git(code, "add", ".")
    git(code, "commit", "-m", "x")
    mark = tmp_path / "ran"
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {mark}\n")
    spy.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "core.pager"):
        git(code, "config", key, str(spy))
    mark.unlink(missing_ok=True)
    (code / "train.py").write_text("changed\n")
    assert git_state(code).diff is not None
    assert not mark.exists()


def test_a_link_to_credentials_is_refused(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_text("secret")
    (code / "pkg" / "weights").symlink_to(tmp_path / ".ssh" / "id_ed25519")
    assert "pkg/weights" in snap(code)[1]
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"pkg/weights is a link, and .*id_ed25519 is where credentials are kept"):
        snap(code, "again")
    assert not (code.parent / "again").exists()


@pytest.mark.parametrize("name", [".netrc", ".git-credentials", ".config/gh/hosts.yml", ".cache/huggingface/token"])
def test_a_link_to_a_file_with_credentials_is_refused(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "home" / name).parent.mkdir(parents=True)
    (tmp_path / "home" / name).write_text("secret")
    (code / "data.txt").symlink_to(tmp_path / "home" / name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match=r"data\.txt is a link, and .* is where credentials are kept"):
        measure(code, ".orchignore", MB)


def test_each_link_that_leaves_the_folder_is_named(code: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    for number in range(5):
        (tmp_path / f"outside/{number}").write_text("private")
        (code / f"link{number}").symlink_to(tmp_path / f"outside/{number}")
    (code / "inside").symlink_to("train.py")
    (code / "folder").symlink_to(tmp_path / "outside")
    expected = [(f"link{number}", f"{tmp_path}/outside/{number}") for number in range(5)]
    for named in (None, ()):
        assert measure(code, ".orchignore", MB, named)[2] == expected
        taken = take(code, tmp_path / f"copy{named}", ".orchignore", MB, named)
        words = left_out_words(asdict(taken.left_out))
        assert "links lead out of the code folder, and their files are copied: " in words
        assert all(f"{path} (to {target})" in words for path, target in expected)
        assert ("links to folders are not sent: folder (to" in words) is (named is not None)


def test_the_home_folder_and_the_places_of_credentials_are_refused(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = code / "alice"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    whole = "holds your whole home folder"
    (home / ".config").mkdir()
    kept, parent = "is where credentials are kept", r"holds credentials \(~/.config/gcloud\)"
    for folder, why in ((code, whole), (home, whole), (home / ".ssh", kept), (home / ".config", parent)):
        with pytest.raises(UsageError, match=why):
            take(folder, tmp_path / "copy", ".orchignore", MB)
    assert not (tmp_path / "copy").exists()


def test_what_would_be_copied_is_known_before(code: Path) -> None:
    taken, _ = snap(code)
    assert measure(code, ".orchignore", MB) == (taken.files, taken.bytes, []) == (2, 11, [])
    with pytest.raises(UsageError, match="more than the 10 B allowed"):
        measure(code, ".orchignore", 10)


def test_private_files_stay_private(code: Path) -> None:
    (code / "key").write_text("k")
    (code / "key").chmod(0o600)
    (code / "run.sh").write_text("true\n")
    (code / "run.sh").chmod(0o755)
    snap(code)
    found = {path.name: path.stat().st_mode & 0o777 for path in (code.parent / "copy").iterdir() if path.is_file()}
    assert found == {"key": 0o600, "train.py": 0o600, "run.sh": 0o700}


def spying(tmp_path: Path) -> tuple[Path, Path]:
    """A program, and the file that it leaves when it is run."""
    mark, spy = tmp_path / "ran", tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    spy.chmod(0o755)
    return spy, mark


@pytest.mark.parametrize("where", ["config", "included", "config.worktree"])
def test_no_filter_of_the_repository_is_run(code: Path, tmp_path: Path, where: str) -> None:
    spy, mark = spying(tmp_path)
    git(code, "init")
    git(code, "add", ".")
    git(code, "commit", "-m", "x")
    (code / ".git" / "info" / "attributes").write_text("*.py filter=evil\n")
    if where == "included":
        git(code, "config", "include.path", "included")
    elif where == "config.worktree":
        git(code, "config", "extensions.worktreeConfig", "true")
    for key, value in (("clean", str(spy)), ("required", "true")):
        git(code, "config", "--file", f".git/{where}", f"filter.evil.{key}", value)
    (code / "train.py").write_text("print(2)\n")
    state = git_state(code)
    assert state.dirty
    assert state.diff is not None
    assert not mark.exists()


def test_a_filter_that_can_not_be_switched_off_is_not_run(code: Path, tmp_path: Path) -> None:
    spy, mark = spying(tmp_path)
    git(code, "init")
    git(code, "add", ".")
    git(code, "commit", "-m", "x")
    (code / ".git" / "info" / "attributes").write_text("*.py filter=a=b\n")
    git(code, "config", "filter.a=b.clean", str(spy))
    (code / "train.py").write_text("print(2)\n")
    assert git_state(code) == Git()
    assert not mark.exists()


def test_no_program_of_a_submodule_is_run(code: Path, tmp_path: Path) -> None:
    spy, mark = spying(tmp_path)
    module = tmp_path / "module"
    module.mkdir()
    (module / "a.py").write_text("1\n")
    for folder in (module, code):
        git(folder, "init")
    git(module, "add", ".")
    git(module, "commit", "-m", "x")
    git(code, "-c", "protocol.file.allow=always", "submodule", "add", str(module), "module")
    git(code, "add", ".")
    git(code, "commit", "-m", "x")
    (code / ".git" / "modules" / "module" / "info" / "attributes").write_text("*.py filter=evil\n")
    git(code / "module", "config", "filter.evil.clean", str(spy))
    (code / "module" / "a.py").write_text("2\n")
    assert git_state(code).commit is not None
    assert not mark.exists()


def test_nothing_is_fetched(code: Path, tmp_path: Path) -> None:
    """A partial clone fetches what it lacks, by a program that its own configuration may name."""
    spy, mark = spying(tmp_path)
    git(code, "init")
    git(code, "add", ".")
    git(code, "commit", "-m", "x")
    blob = git(code, "rev-parse", "HEAD:train.py")
    (code / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for key, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", str(tmp_path)),
        ("remote.origin.uploadpack", str(spy)),
        ("protocol.file.allow", "always"),
    ):
        git(code, "config", key, value)
    (code / "train.py").write_text("print(2)\n")
    git_state(code)
    assert not mark.exists()


def test_without_git(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_state(code) == Git()


def test_a_small_folder_costs_few_programs(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(code, "init")
    for i in range(18):
        (code / f"{i}.py").write_text("x" * 1000)
    started, run = list[tuple[str, ...]](), subprocess.run

    def counted(argv: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        started.append(tuple(argv))
        return run(argv, **options)

    monkeypatch.setattr(code_snapshot.subprocess, "run", counted)
    snap(code, "0")
    assert 0 < len(started) <= 3, started  # git, whatever the number of files


@pytest.mark.parametrize("folder", ["", "a/", "a/.github/"])
def test_without_an_ignore_file_the_built_in_patterns_mean_what_they_mean_with_one(tmp_path: Path, folder: str) -> None:
    names = [name.rstrip("/").replace("*", "x") for name in ignore_rules.DEFAULT_IGNORE]
    names += [f"{name}x" for name in names] + [".gitignore", "Venv", "x.pyc.py", "new\nline.pyc"]
    paths = [f"{folder}{name}{end}" for name in names for end in ("", "/")]
    without = ignore_rules.Rules.of(tmp_path, ".orchignore")
    (tmp_path / ".orchignore").write_text("nothing-that-is-here\n")
    with_one = ignore_rules.Rules.of(tmp_path, ".orchignore")
    assert list(filter(without.ignores, paths)) == list(filter(with_one.ignores, paths)) != []
    assert (without.lines, with_one.lines) == ((), ((".orchignore:1", "nothing-that-is-here"),))


def test_the_line_that_leaves_files_out_is_told_with_the_largest(code: Path) -> None:
    for name, size in {"data/a": 10, "data/b/c": 200_000, "x.bin": 3, "y.bin": 2, "z.bin": 1, "a.pyc": 9}.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_bytes(bytes(size))
    (code / ".gitignore").write_text("# what is large\n\ndata/\n*.bin\n")
    left = take(code, code.parent / "copy", ".orchignore", MB, ()).left_out
    assert left.largest == [
        ("data/", 200_010, ".gitignore:3 (data/)"), ("x.bin", 3, ".gitignore:4 (*.bin)"),
        ("y.bin", 2, ".gitignore:4 (*.bin)"),
    ]  # fmt: skip
    assert left_out_words(asdict(left)) == (
        "note: 5 files (195.3 KiB) of the code folder are not sent: data/ (195.3 KiB) by .gitignore:3 (data/); "
        "x.bin (3 B) by .gitignore:4 (*.bin); y.bin (2 B) by .gitignore:4 (*.bin)"
    )
    assert left_out_words(None) == left_out_words({"files": 0}) == ""


def test_a_data_set_of_any_number_of_files_is_not_counted_to_its_end(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignore_rules, "MOST_MEASURED", 5)
    (code / "data").mkdir()
    for number in range(9):
        (code / f"data/{number}").touch()
    (code / ".gitignore").write_text("data/\n")
    left = take(code, code.parent / "copy", ".orchignore", MB, ()).left_out
    assert (left.files, left.is_more) == (5, True)
    assert "more than 5 files" in left_out_words(asdict(left))


def test_a_file_that_the_command_line_names_is_sent_though_a_line_leaves_it_out(code: Path) -> None:
    for name in ("data/big/a.bin", "data/big/b.bin", "venv/tool"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()
    (code / ".orchignore").write_text("*\n")
    words = ["train.py", "--data=data/big/a.bin", "venv/tool", str(code.parent / "x"), "a\0b", "", "--lr", "0.1"]
    named = named_files(code, words)
    assert named == ("train.py", "data/big/a.bin", "venv/tool")
    assert set(take(code, code.parent / "copy", ".orchignore", MB, named).listing) == {
        "train.py", "data", "data/big", "data/big/a.bin",
    }  # fmt: skip


def test_an_ignore_file_that_leaves_out_everything_is_refused_in_one_sentence(code: Path) -> None:
    (code / ".orchignore").write_text("*\n")
    with pytest.raises(UsageError, match=r"every file in this folder is ignored, \S+ by \.orchignore:1 \(\*\)"):
        take(code, code.parent / "copy", ".orchignore", MB, ())
    assert not (code.parent / "copy").exists()
