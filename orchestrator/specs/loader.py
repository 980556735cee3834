"""From YAML files, --set and flags to a Job and a Profile; every mistake is a SpecError with file:line:column."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.errors import SpecError, UsageError
from orchestrator.specs.diagnostics import did_you_mean, explain, raise_problems
from orchestrator.specs.job import Job
from orchestrator.specs.lookup import SUFFIXES, documents, known_profiles, shipped, users_profiles
from orchestrator.specs.profile import AnyProfile, LocalProfile, SlurmProfile, SshProfile
from orchestrator.specs.validation import check, check_code, check_code_place, fit
from orchestrator.specs.yaml_source import Document, Node, from_value, kind_of, merge, nested, parse, plain, read_yaml

__all__ = [
    "Document",
    "Loaded",
    "check",
    "job_path",
    "load",
    "load_job",
    "load_profile",
    "profile_path",
    "read_yaml",
    "schema",
]

KINDS: Final[dict[str, type[BaseModel]]] = {
    "local": LocalProfile,
    "ssh": SshProfile,
    "slurm": SlurmProfile,
}
# Arguments and variables are handed on as they were written: 1e-3 stays 1e-3, not 0.001.
_VERBATIM: Final = frozenset(("args", "command", "env"))
_EMPTY: Final = Node({}, "")
_NONE_GIVEN: Final[Mapping[str, Any]] = MappingProxyType({})
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Loaded:
    """A job and a profile that fit each other, and where they and the code came from."""

    job: Job
    profile: AnyProfile
    job_path: Path
    profile_path: Path
    code_dir: Path


def load(
    job: str | Path,
    profile: str | Path,
    *,
    sets: Iterable[str] = (),
    flags: Mapping[str, Any] = _NONE_GIVEN,
    cwd: Path | None = None,
    allow_code_dir: bool = False,
) -> Loaded:
    """Read both documents, lay --set and flags over them, and check them; SpecError or UsageError tells what is wrong.

    Built-in values < the profile's `defaults` < the job < `sets` < `flags` (dotted path -> value, None: not given).
    A code folder that is not the job's own needs `allow_code_dir`, or the user's own word in `sets`.
    """
    cwd = cwd or Path.cwd()
    for_job, for_profile = _overrides(sets, flags)
    where = profile_path(profile, cwd)
    profile_root = merge(_read(where, "profile", cwd), for_profile)
    loaded_profile = _profile(profile_root, where)
    job_file = job_path(job, cwd)
    document = merge(_read(job_file, "job", cwd), for_job)
    defaults = profile_root.get("defaults") or _EMPTY
    root = merge(defaults, document)
    loaded_job = _validate(_named(root, job_file), Job, _shown(job_file, cwd))
    loaded_profile = fit(loaded_job, loaded_profile)
    code_dir = _code_dir(loaded_job, job_file)
    allowed = allow_code_dir or (for_job.get("code") or _EMPTY).get("dir") is not None
    place = check_code_place(code_dir, job_file, allowed=allowed)
    problems = [*check(loaded_job, loaded_profile), *(place or check_code(loaded_job, code_dir))]
    raise_problems(problems, root, _shown(job_file, cwd))
    return Loaded(loaded_job, loaded_profile, job_file, where, code_dir)


def load_job(
    job: str | Path,
    *,
    sets: Iterable[str] = (),
    flags: Mapping[str, Any] = _NONE_GIVEN,
    cwd: Path | None = None,
) -> Job:
    """Read and check a job file alone; SpecError or UsageError tells what is wrong."""
    cwd = cwd or Path.cwd()
    for_job, _ = _overrides(sets, flags)
    path = job_path(job, cwd)
    root = merge(_read(path, "job", cwd), for_job)
    loaded = _validate(_named(root, path), Job, _shown(path, cwd))
    raise_problems(check_code(loaded, _code_dir(loaded, path)), root, _shown(path, cwd))
    return loaded


def load_profile(
    profile: str | Path,
    *,
    sets: Iterable[str] = (),
    flags: Mapping[str, Any] = _NONE_GIVEN,
    cwd: Path | None = None,
) -> AnyProfile:
    """Read and check a profile alone, its `defaults` too; SpecError or UsageError tells what is wrong."""
    cwd = cwd or Path.cwd()
    _, for_profile = _overrides(sets, flags)
    path = profile_path(profile, cwd)
    root = merge(_read(path, "profile", cwd), for_profile)
    loaded = _profile(root, path)
    if defaults := root.get("defaults"):
        _check_defaults(defaults, path)
    return loaded


def _check_defaults(defaults: Node, path: Path) -> None:
    """Report what is wrong with the fields that are there; a whole job they need not be."""
    try:
        Job.model_validate_json(json.dumps(plain(_named(defaults, path), _VERBATIM)))
    except ValidationError as error:
        found = explain(error, defaults, Job)
        raise_problems((p for p in found if p.path and " is missing" not in f" {p.message}"), defaults, str(path))


def _read(path: Path, what: str, cwd: Path) -> Node:
    """Read the file under the name that its user would call it by."""
    shown = Path(_shown(path, cwd))
    return read_yaml(shown if shown.is_absolute() or Path.cwd() == cwd else path, what).root


def _shown(path: Path, cwd: Path) -> str:
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def _code_dir(job: Job, job_file: Path) -> Path:
    return (job_file.parent / Path(job.code.dir).expanduser()).resolve()


def _named(root: Node, path: Path) -> Node:
    """Name a document after its file where it has no name."""
    if not isinstance(root.value, dict) or "name" in root.value:
        return root
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")[:40] or "unnamed"
    return Node({"name": Node(stem, root.where), **root.value}, root.where)


def _profile(root: Node, path: Path) -> AnyProfile:
    kind = root.get("kind")
    kinds = ", ".join(KINDS)
    if kind is None:
        raise SpecError(root.where, "kind is missing", f"say what kind of profile it is: {kinds}")
    if not isinstance(kind.value, str) or kind.value not in KINDS:
        guess = did_you_mean(kind.value, KINDS) if isinstance(kind.value, str) else ""
        raise SpecError(kind.where, f"kind: expected one of {kinds}, found {kind_of(kind)}{guess}")
    loaded = _validate(_named(root, path), KINDS[kind.value], str(path))
    assert isinstance(loaded, LocalProfile | SshProfile | SlurmProfile)
    return loaded


def _validate(root: Node, model: type[_Model], name: str) -> _Model:
    """Validate as JSON does, and turn what is wrong into one SpecError."""
    verbatim = _VERBATIM if model is Job else frozenset[str]()
    try:
        return model.model_validate_json(json.dumps(plain(root, verbatim)))
    except ValidationError as error:
        raise_problems(explain(error, root, model), root, name)
        raise AssertionError("pydantic reported an error without a place") from error


def _overrides(sets: Iterable[str], flags: Mapping[str, Any]) -> tuple[Node, Node]:
    """Return the job's and the profile's overrides as trees; flags come last and win."""
    trees = {"job": _EMPTY, "profile": _EMPTY}
    for text in sets:
        document, path, leaf = _set(text)
        trees[document] = merge(trees[document], nested(path, leaf))
    for dotted, value in flags.items():
        if value is not None:
            document, *path = dotted.split(".")
            leaf = from_value(value, f"{dotted} (command line)")
            trees[document] = merge(trees[document], nested(path, leaf))
    # The document itself stays where it was written.
    return replace(trees["job"], where=""), replace(trees["profile"], where="")


def _set(text: str) -> tuple[str, list[str], Node]:
    """Read `job.a.b=VALUE`; the value is YAML."""
    where = f"--set {text if len(text) <= 120 else text[:117] + '...'}"
    dotted, equals, value = text.partition("=")
    document, *path = dotted.strip().split(".")
    if not equals or document not in ("job", "profile") or not path or not all(path):
        hint = "write job.FIELD=VALUE or profile.FIELD=VALUE, as in --set job.resources.time=2h"
        if equals and document not in ("job", "profile"):
            owner = "profile" if document in SlurmProfile.model_fields and document != "name" else "job"
            hint = f"did you mean --set {owner}.{dotted.strip()}=...?"
        raise UsageError(f"{where}: the option can't be read", hint)
    leaf = parse(value, where, "--set", fixed_place=True)
    if leaf is None or (leaf.value is None and not leaf.text):
        raise UsageError(f"{where}: the value is empty", "write null for no value, '' for an empty text")
    return document, path, leaf


def job_path(ref: str | Path, cwd: Path) -> Path:
    """Return the job file of a path, or of a name in ./jobs or among the shipped; UsageError suggests near names."""
    path = cwd / Path(ref).expanduser()
    if (path.is_file() and path.suffix != ".py") or (path.suffix in SUFFIXES and path.is_dir()):
        return path
    name = str(ref)
    if path.suffix == ".py":
        hint = f"write one for it: orch init {path.stem} python {name}"
        raise UsageError(f"{name}: is a program, and submit takes a job file", hint)
    named = path.suffix not in SUFFIXES and "/" not in name
    places = [cwd / "jobs", shipped("jobs")] if named else []
    for folder in places:
        for suffix in SUFFIXES:
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    if path.exists():
        raise UsageError(f"{name}: is not a job file", "give the path of a YAML file")
    ours = shipped("jobs")
    near = _near(path.stem, [p for folder in (path.parent, *places, ours) for p in documents(folder)], 3)
    names = dict.fromkeys(p.stem if p.parent == ours else p.name for p in near)
    hint = f"did you mean {' or '.join(names)}?" if near else "give the path of a YAML file (orch init writes one)"
    raise UsageError(f"{name}: there is no such job file", hint)


def profile_path(ref: str | Path, cwd: Path) -> Path:
    """Return the profile file of a path, or of a name in ./cluster_profiles, the user's folder or the shipped."""
    name = str(ref)
    if "/" in name or name.endswith(SUFFIXES):
        path = cwd / Path(name).expanduser()
        if not path.exists():
            near = _near(path.stem, documents(path.parent), 1)
            hint = f"did you mean {_shown(near[0], cwd)}?" if near else _known_names(cwd)
            raise UsageError(f"{name}: there is no such profile file", hint)
        return path
    known = {known_name: path for known_name, path, _ in reversed(known_profiles(cwd))}
    if name in known:
        return known[name]
    guess = did_you_mean(name, sorted(known)).removeprefix("; ")
    raise UsageError(f"there is no profile '{name}'", " ".join(filter(None, (guess, _known_names(cwd)))))


def _known_names(cwd: Path) -> str:
    return f"known profiles: {', '.join(dict.fromkeys(name for name, _, _ in known_profiles(cwd))) or 'none'}"


def shadowed_profile(ref: str, cwd: Path) -> Path | None:
    """Return the user's own profile that one of the current folder hides, by its name; None where it hides none."""
    if "/" in ref or ref.endswith(SUFFIXES):
        return None
    own = [path for path in documents(users_profiles()) if path.stem == ref]
    return own[0] if own and profile_path(ref, cwd) != own[0] else None


def _near(stem: str, files: list[Path], most: int) -> list[Path]:
    """Return the files whose names are nearest, the suffix aside."""
    close = difflib.get_close_matches(stem, {p.stem for p in files}, n=most, cutoff=0.6)
    return [path for name in close for path in files if path.stem == name]


def schema(what: str) -> dict[str, Any]:
    """Return the JSON Schema of a `job` or `profile` document, for editors."""
    from orchestrator.specs.json_schema import job_schema, profile_schema  # noqa: PLC0415  (only editors need it)

    return job_schema() if what == "job" else profile_schema()
