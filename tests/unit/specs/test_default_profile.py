"""Which profile is taken where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import SpecError
from orchestrator.specs.documents.default_profile import Choice, config_file, default_profile


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's config file, and one to work in."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config_file().parent.mkdir(parents=True)
    (tmp_path / "cwd/cluster_profiles").mkdir(parents=True)
    return config_file().parent


def make(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.yaml").write_text("kind: local\n")


def test_each_source_comes_before_the_next(tmp_path: Path, config: Path) -> None:
    cwd = tmp_path / "cwd"

    def chosen(**environ: str) -> Choice:
        return default_profile("train", cwd, environ)

    assert chosen() == Choice("local", "none is named: -p NAME; orch profiles lists them")
    make(config / "profiles", "mine")
    assert chosen(ORCH_PROFILE="") == Choice("mine", "the only one of your own")
    make(cwd / "cluster_profiles", "lab")
    assert chosen().profile == "local"  # two of one's own: neither is meant more than the other
    make(cwd / "cluster_profiles", "train")
    assert chosen() == Choice("train", "it is named like the job")
    (config / "config.yaml").write_text("profile: lab\n")
    assert chosen() == Choice("lab", f"from {config}/config.yaml")
    assert chosen(ORCH_PROFILE="mine") == Choice("mine", "from ORCH_PROFILE")


def test_the_profiles_that_come_with_orch_are_nobody_s_own(config: Path) -> None:
    assert default_profile("local-2x2", Path(__file__).parents[3], {}).profile == "local"


def test_a_file_in_the_config_is_seen_from_its_folder(tmp_path: Path, config: Path) -> None:
    (config / "config.yaml").write_text("profile: ./far.yaml\n")
    assert Path(default_profile("", tmp_path, {}).profile) == config / "far.yaml"


@pytest.mark.parametrize(
    ("text", "said"),
    [("profil: lab", "config.yaml:1:1: profil"), ("profile: [lab]", "config.yaml:1:10: profile: expected"),
     ("profile:", "1:"), ("", "empty"), ("lab", "mapping"), ("profile: a: b", "not valid YAML")],
)  # fmt: skip
def test_a_wrong_config_file_is_named_with_its_place(config: Path, text: str, said: str) -> None:
    (config / "config.yaml").write_text(text)
    with pytest.raises(SpecError, match=said):
        default_profile("", config, {})
