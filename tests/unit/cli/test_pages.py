"""Schemas, shipped files and pages say what the models say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator.specs.border import hints_of
from orchestrator.specs.documents.loader import load, load_profile
from orchestrator.specs.documents.yaml_source import parse, plain
from orchestrator.specs.job import Job
from orchestrator.specs.json_schema import schema
from orchestrator.specs.profile import LocalProfile, SshProfile
from orchestrator.specs.slurm_profile import SlurmProfile
from orchestrator.specs.spec import Spec
from tests.option_tables import with_table

ROOT = Path(__file__).parents[3]
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))
PROFILES = sorted((ROOT / "cluster_profiles").glob("*.yaml"))
SHIPPED = [*(("job", path) for path in JOBS), *(("profile", path) for path in PROFILES)]


@pytest.mark.parametrize("what", ["job", "profile"])
def test_the_committed_schemas_are_current(what: str) -> None:
    """If not: `orch schema job > schemas/job.schema.json`, and the same for profile."""
    committed = json.loads((ROOT / "schemas" / f"{what}.schema.json").read_text())
    assert committed == schema(what)


@pytest.mark.parametrize("page", ["job", "training"])
def test_the_tables_of_training_options_are_current(page: str) -> None:
    """If not: `make options`."""
    text, current = with_table(page)
    assert text == current
    assert "| `training.lr` |" in text or "| `--lr RATE` |" in text


@pytest.mark.parametrize(("what", "path"), SHIPPED, ids=lambda value: getattr(value, "name", value))
def test_shipped_files_fit_their_schema_and_name_it(what: str, path: Path) -> None:
    text = path.read_text()
    assert text.splitlines()[0] == f"# yaml-language-server: $schema=../schemas/{what}.schema.json"
    node = parse(text, path.name)
    assert node is not None
    whole = schema(what)
    assert misfit(plain(node), whole, whole) == ""


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_every_shipped_job_fits_every_shipped_profile(job: Path, profile: Path) -> None:
    loaded = load(job, profile, cwd=ROOT)
    assert loaded.code_dir == ROOT / "jobs"
    assert load_profile(profile.stem, cwd=ROOT).name == profile.stem


@pytest.mark.parametrize(
    ("what", "data", "fits"),
    [
        ("job", {"script": "a.py"}, True),
        (
            "job",
            {"script": "a.py", "resources": {"time": "1h", "mem": 5}, "args": [1, 0.5, "x"], "env": {"A": None}},
            True,
        ),
        (
            "job",
            {"script": "a.py", "container": {"image": "i", "mounts": ["/a:/b", {"source": "a", "target": "b"}]}},
            True,
        ),
        ("job", {}, False),
        ("job", {"script": "a.py", "module": "b"}, False),
        ("job", {"script": "a.py", "nodes": 3}, False),
        ("job", {"script": "a.py", "limits": {"join": -1}}, False),
        ("profile", {"kind": "ssh", "hosts": ["n[1-3]", {"host": "a"}], "defaults": {"args": ["x"]}}, True),
        ("profile", {"kind": "ssh"}, False),
        ("profile", {"kind": "local", "nproc_per_node": "auto"}, True),
        ("profile", {"kind": "local", "nproc_per_node": "four"}, False),
        ("profile", {"kind": "local", "defaults": {"arg": ["x"]}}, False),
        ("profile", {"kind": "slurm", "time": "12:00:00", "sbatch": {"exclusive": True}}, True),
        ("profile", {"kind": "slrum"}, False),
    ],
)
def test_the_schemas_take_what_the_loader_takes(what: str, data: dict[str, Any], fits: bool) -> None:
    whole = schema(what)
    assert (misfit(data, whole, whole) == "") is fits


TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None), "array": list,
    "object": dict,
}  # fmt: skip


def misfit(value: Any, rule: dict[str, Any], whole: dict[str, Any]) -> str:
    """The first thing that breaks the schema; the keywords that ours use, and no others."""
    if "$ref" in rule and (found := misfit(value, whole["$defs"][rule["$ref"].rpartition("/")[2]], whole)):
        return found
    for word in ("anyOf", "oneOf"):
        fitting = sum(not misfit(value, option, whole) for option in rule.get(word, []))
        if word in rule and (fitting == 0 or (word == "oneOf" and fitting > 1)):
            return f"{value!r} fits {fitting} of {word}"
    kind = rule.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind not in ("boolean",))):
        return f"{value!r} is no {kind}"
    if value not in rule.get("enum", [value]) or value != rule.get("const", value):
        return f"{value!r} is not allowed"
    if isinstance(value, int | float) and not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        return f"{value!r} is out of range"
    if isinstance(value, list):
        return next((m for item in value if (m := misfit(item, rule.get("items", {}), whole))), "")
    return misfit_of_mapping(value, rule, whole) if isinstance(value, dict) else ""


def misfit_of_mapping(value: dict[str, Any], rule: dict[str, Any], whole: dict[str, Any]) -> str:
    if absent := set(rule.get("required", [])) - set(value):
        return f"{absent} missing"
    others = rule.get("additionalProperties", True)
    for key, item in value.items():
        if key not in rule.get("properties", {}) and others is False:
            return f"{key} unknown"
        inner = rule.get("properties", {}).get(key, others if isinstance(others, dict) else {})
        if found := misfit(item, inner, whole):
            return found
    return ""


def fields(model: type[Spec], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, hint in hints_of(model).items():
        found.add(prefix + name)
        inner, many = model_in(hint)
        if inner is not None and name != "spares":
            found |= fields(inner, f"{prefix}{name}{'[]' if many else ''}.")
    return found


def model_in(annotation: Any, many: bool = False) -> tuple[type[Spec] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return annotation, many
    is_list = getattr(annotation, "__origin__", None) is tuple
    for argument in get_args(annotation):
        found, inside = model_in(argument, many or is_list)
        if found is not None:
            return found, inside
    return None, many


@pytest.mark.parametrize(
    ("page", "models"), [("job.md", (Job,)), ("profile.md", (LocalProfile, SshProfile, SlurmProfile))]
)
def test_each_field_is_in_its_page_and_no_other(page: str, models: tuple[type[Spec], ...]) -> None:
    text = (ROOT / "docs" / page).read_text()
    documented = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert set(documented) == set().union(*(fields(model) for model in models))


@pytest.mark.parametrize("page", ["job.md", "profile.md"])
def test_examples_of_the_pages_load(page: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "x.yaml").write_text(block)
        (tmp_path / "local.yaml").write_text("kind: local\n")
        load("x.yaml", "local.yaml", cwd=tmp_path) if page == "job.md" else load_profile("./x.yaml", cwd=tmp_path)
