"""Loads a Job and a Profile from YAML files, --set and flags. Every mistake is a SpecError with file:line:column."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from orchestrator.errors import SpecError, UsageError
from orchestrator.specs.border import valid
from orchestrator.specs.documents.diagnostics import did_you_mean, explain, near_field, raise_problems
from orchestrator.specs.documents.loaded import Loaded, code_dir_of
from orchestrator.specs.documents.paths import both_paths, profile_path, shown
from orchestrator.specs.documents.yaml_source import (
    Document,
    Node,
    from_value,
    kind_of,
    merge,
    nested,
    parse,
    plain,
    read_yaml,
)
from orchestrator.specs.here import check_here
from orchestrator.specs.job import Job, Training
from orchestrator.specs.kinds import OWN, every, find, kind_named, model_of
from orchestrator.specs.spec import Spec, names_of
from orchestrator.specs.validation import check, fit

if TYPE_CHECKING:
    from orchestrator.specs.profiles import AnyProfile

# Arguments and variables keep their spelling: 1e-3 stays 1e-3 and does not become 0.001.
_VERBATIM: Final = frozenset(("args", "command", "env"))
BARE_SECONDS: Final = 3600
BARE_BYTES: Final = 1 << 20
AFTER_DASHES: Final = "arguments of the job's own program come last, after --: orch submit JOB -- --lr 0.1"
_EMPTY: Final = Node({}, "")
_NONE_GIVEN: Final[Mapping[str, Any]] = MappingProxyType({})
_OPTIONS: Final = {
    "nodes": "--nodes", "nproc_per_node": "--nproc-per-node", "name": "--name", "profile": "-p", "resume": "--resume",
}  # fmt: skip
"""Fields that --set refuses because another option sets them."""

S = TypeVar("S", bound=Spec)


def load(
    job: str | Path | Document,
    profile: str | Path,
    *,
    sets: Iterable[str] = (),
    flags: Mapping[str, Any] = _NONE_GIVEN,
    cwd: Path | None = None,
    allow_code_dir: bool = False,
) -> Loaded:
    """Read the job and the profile, apply --set and flags, and check both.

    `job` may be a Document that orch built; its path decides the code folder. The precedence is, lowest first: built-in
    values, the profile's `defaults`, the job, `sets`, `flags` (dotted path -> value; None counts as not given). A code
    folder outside of the job's own folder needs `allow_code_dir`, or a `--set` of the folder. Raises SpecError or
    UsageError if a document or an option has a mistake.
    """
    cwd = cwd or Path.cwd()
    for_job, for_profile = _overrides(sets, flags)
    job_file, where = both_paths(job, profile, cwd)
    profile_root = merge(_read(where, "profile", cwd), for_profile)
    loaded_profile = _profile(profile_root, where)
    written = job if isinstance(job, Document) else Document(job_file, _read(job_file, "job", cwd))
    document = merge(written.root, for_job)
    defaults = profile_root.get("defaults") or _EMPTY
    if (training := for_job.get("training")) and not (written.root.get("training") or defaults.get("training")):
        _refuse_training(training)
    root = merge(defaults, document)
    loaded_job = _validate(_named(root, job_file), Job, shown(job_file, cwd))
    loaded_profile = fit(loaded_job, loaded_profile)
    code_dir = code_dir_of(loaded_job, job_file)
    allowed = allow_code_dir or (for_job.get("code") or _EMPTY).get("dir") is not None
    problems = [
        *check(loaded_job, loaded_profile),
        *check_here(loaded_job, loaded_profile, code_dir, job_file, allowed=allowed),
    ]
    raise_problems(problems, root, shown(job_file, cwd))
    resources = root.get("resources") or _EMPTY
    notes = _notes_on_times([profile_root.get("time"), resources.get("time")])
    notes += _notes_on_sizes([profile_root.get("mem"), resources.get("mem")])
    notes += tuple(f"{shown(where, cwd)}: {note}" for note in loaded_profile.notes())
    is_scheduled = bool(kind_named(loaded_profile.kind).scheduler)  # only schedulers count in minutes and MiB
    return Loaded(loaded_job, loaded_profile, job_file, where, code_dir, notes if is_scheduled else ())


def _notes_on_times(times: Iterable[Node | None]) -> tuple[str, ...]:
    """Return a note on each short time limit without a unit, because the user may mean minutes (Slurm's unit)."""
    bare = [each for each in times if each is not None and type(each.value) is int and each.value < BARE_SECONDS]
    return tuple(
        f"{each.where}: `time: {each.value}` means {each.value} seconds; write {each.value}m for minutes"
        for each in bare
    )


def _notes_on_sizes(sizes: Iterable[Node | None]) -> tuple[str, ...]:
    """Return a note on each small memory size without a unit, because the user may mean MiB (Slurm's unit) or GB."""
    bare = [each for each in sizes if each is not None and str(each.value).strip().isdecimal()]
    few = [each for each in bare if int(str(each.value)) < BARE_BYTES]
    return tuple(
        (
            f"{each.where}: `mem: {each.value}` means {each.value} bytes, so orch requests 1 MiB; write "
            f"{each.value}G for gigabytes, or {each.value}M for megabytes, Slurm's own unit"
        )
        for each in few
    )


def load_profile(profile: str | Path, *, sets: Iterable[str] = (), cwd: Path | None = None) -> AnyProfile:
    """Read and check a profile without a job, including its `defaults`. Raises SpecError or UsageError if it has a
    mistake.
    """
    cwd = cwd or Path.cwd()
    _, for_profile = _overrides(sets, {})
    path = profile_path(profile, cwd)
    root = merge(_read(path, "profile", cwd), for_profile)
    loaded = _profile(root, path)
    if defaults := root.get("defaults"):
        _check_defaults(defaults, path)
    return loaded


def _check_defaults(defaults: Node, path: Path) -> None:
    """Raise SpecError if the profile's `defaults` have a mistake. The defaults may lack fields that a job must have."""
    try:
        valid(Job, plain(_named(defaults, path), _VERBATIM))
    except ValidationError as error:
        found = explain(error, defaults, Job)
        raise_problems((p for p in found if p.path and " is missing" not in f" {p.message}"), defaults, str(path))


def _read(path: Path, what: str, cwd: Path) -> Node:
    """Read a file. Its path is written as the user would type it, because error messages show the path."""
    name = Path(shown(path, cwd))
    return read_yaml(name if name.is_absolute() or Path.cwd() == cwd else path, what).root


def _named(root: Node, path: Path) -> Node:
    """Return the document with a name. The default is the file's name."""
    if not isinstance(root.value, dict) or "name" in root.value:
        return root
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")[:40] or "unnamed"
    return Node({"name": Node(stem, root.where), **root.value}, root.where)


def _profile(root: Node, path: Path) -> AnyProfile:
    kind = root.get("kind")
    if kind is None:
        raise SpecError(
            root.where, "kind is missing", f"add a line `kind: KIND`, where KIND is one of {', '.join(OWN)}"
        )
    found = find(kind.value) if isinstance(kind.value, str) else None
    if found is None:
        known = [each.name for each in every()]
        guess = did_you_mean(kind.value, known) if isinstance(kind.value, str) else ""
        raise SpecError(kind.where, f"kind: expected one of {', '.join(known)}, found {kind_of(kind)}{guess}")
    return _validate(_named(root, path), model_of(found), str(path))


def _validate(root: Node, spec: type[S], name: str) -> S:
    """Validate a tree as JSON. Raises one SpecError for all mistakes."""
    verbatim = _VERBATIM if spec is Job else frozenset[str]()
    try:
        return valid(spec, plain(root, verbatim))
    except ValidationError as error:
        raise_problems(explain(error, root, spec), root, name)
        raise AssertionError("pydantic reported an error without the path of a field") from error


def _overrides(sets: Iterable[str], flags: Mapping[str, Any]) -> tuple[Node, Node]:
    """Return the job's and the profile's overrides as trees. Flags override `sets`."""
    trees = {"job": _EMPTY, "profile": _EMPTY}
    for text in sets:
        document, path, leaf = _set(text)
        trees[document] = merge(trees[document], nested(path, leaf))
    for dotted, value in flags.items():
        if value is not None:
            document, *path = dotted.split(".")
            leaf = from_value(value, f"{dotted} (command line)")
            trees[document] = merge(trees[document], nested(path, leaf))
    # The override must not replace the place of the document itself.
    return replace(trees["job"], where=""), replace(trees["profile"], where="")


def _refuse_training(given: Node) -> None:
    """Raise UsageError for a field of `training:` that was given for a job without training."""
    # a value that is not a mapping is not a `training:` section
    fields = given.value.values() if isinstance(given.value, dict) else ()
    where = next((node.where for node in fields), given.where)
    raise UsageError(f"{where}: sets a field of `training`, which this job doesn't have", AFTER_DASHES)


def _set(text: str) -> tuple[str, list[str], Node]:
    """Parse `job.a.b=VALUE`, or `lr=VALUE` for a field of `training:`. The value is YAML."""
    where = f"--set {text if len(text) <= 120 else text[:117] + '...'}"
    dotted, equals, value = text.partition("=")
    document, *path = dotted.strip().split(".")
    if document in names_of(Training) and not path:
        document, path = "job", ["training", document]
    if equals and dotted.strip() in _OPTIONS:
        given = shlex.quote(value.strip())
        raise UsageError(f"{where}: {dotted.strip()} is not a job field", f"write {_OPTIONS[dotted.strip()]} {given}")
    if not equals or document not in ("job", "profile") or not path or not all(path):
        hint = "write job.FIELD=VALUE or profile.FIELD=VALUE, as in --set job.resources.time=2h"
        if equals and (near := near_field(dotted.strip())):
            hint = f"did you mean --set {near.removeprefix('job.training.')}=...?"
        if equals and dotted.strip().startswith(("-", "args.")):
            hint = AFTER_DASHES
        raise UsageError(f"{where}: the option can't be read", hint)
    leaf = parse(value, where, "--set", fixed_place=True)
    if leaf is None or (leaf.value is None and not leaf.text):
        raise UsageError(f"{where}: the value is empty", "write null for no value, '' for an empty text")
    return document, path, leaf


def document_of(fields: Mapping[str, Any], folder: Path, called: str) -> Document:
    """Return a job that was built from `fields`, with its code in `folder`. Error messages call it `called`."""
    return Document(folder / f"{fields.get('name', 'job')}.yaml", from_value(fields, called))
