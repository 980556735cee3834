"""Builds the JSON Schema of each command's --json from the types that the commands print.

The table `OUTPUTS` has the types of all commands. A field is defined in this module only if no type of orch has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, Final, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema

from orchestrator.backends import base
from orchestrator.backends.batch.queues import Partition
from orchestrator.looking.account import Account
from orchestrator.operations import bandwidth, diff, placing, usage
from orchestrator.operations.debugging import drill, profiling, stacks
from orchestrator.operations.pull import Pulled
from orchestrator.outcome.verdict import Verdict
from orchestrator.prepare.prepare import Shipment
from orchestrator.protocol import samples
from orchestrator.protocol.events import KINDS
from orchestrator.runs import findings
from orchestrator.runs.files.checkpoints import Checkpoint
from orchestrator.runs.files.metrics import Ranked
from orchestrator.runs.job_use import JobUse
from orchestrator.runs.labels import Labels
from orchestrator.runs.state import LeftOutputs, RunState
from orchestrator.specs.json_schema import DIALECT, tidied

Object = dict[str, JsonValue]
Forms = dict[str, Any]
"""The JSON types that one command prints, by the arguments with which it is called."""


def _fields(title: str, /, *of: Any, maybe: Collection[str] = (), is_open: bool = False, **more: Any) -> Any:
    """Return the schema of a JSON object. Its fields are those of the classes in `of`, and those in `more`.

    A command may omit the fields in `maybe`. With `is_open`, the object may have further fields.
    """
    hints = {field: hint for each in of for field, hint in _hints(each).items()} | more
    config = ConfigDict(extra="allow") if is_open else None
    fields: Any = {each: (hint, None if each in maybe else ...) for each, hint in hints.items()}
    return create_model(title, __config__=config, **fields)


def _hints(of: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, or of a type that `_fields` returned."""
    if issubclass(of, BaseModel):
        return {name: field.annotation for name, field in of.model_fields.items()}
    hints = get_type_hints(of)
    return {each.name: hints[each.name] for each in dataclasses.fields(of)}


def _list(of: Any) -> Any:
    return list[of]


def _mapping(of: Any) -> Any:
    """Return the type of a JSON object with any keys. All values have the given type."""
    return dict[str, of]


_PROGRESS = _fields(
    "Progress", is_open=True, maybe=("step", "total", "epoch", "phase", "loss", "rate", "eta", "time"),
    step=float | None, total=float | None, epoch=float | None, phase=str, loss=float | None, rate=float | None,
    eta=float | None, time=float,
)  # fmt: skip
_ROW = _fields("Row", RunState, sweep=str | None, progress=_PROGRESS | None, last_line=str, labels=Labels)
_TRACKER = _fields("Tracker", name=str, link=str, problem=str, done=bool)
_SENT = _fields(
    "Sent", maybe=("event", "entry", "time", "sends", "problem"),
    id=str, event=str, entry=int, state=str, time=float, sends=int, problem=str,
)  # fmt: skip
_PAGE = _fields(
    "Page", RunState, account=Account | None, progress=_PROGRESS | None, last_line=str, result=Object | None,
    folder=str,
    findings=list[findings.Finding], record=Object, notifications=_list(_SENT), trackers=_list(_TRACKER), labels=Labels,
)  # fmt: skip
_POINT = _fields("Point", RunState, values=dict[str, str])
_SWEEP = _fields("Sweep", sweep=str, state=str, points=_list(_POINT))
_SHARED = _fields(
    "SharedRun", user=str, run=str | None, state=Literal["running", "waiting", "passed over"], position=int | None,
    hosts=dict[str, int], since=float | None,
)  # fmt: skip
_RANKS = _fields(
    "Ranks", maybe=("argv", "environment", "own"), argv=list[str], environment=dict[str, str], own=list[str],
    nodes=_list(_fields("RanksOfNode", node_rank=int, host=str, ranks=tuple[int, int])),
)  # fmt: skip
_PLAN = _fields(
    "Plan", run_id=str, name=str, job=Object, profile=Object, tasks=list[Object], commands=list[list[str]],
    master_addr=str, secret_names=list[str], version=int, shared=Object, ranks=_RANKS,
)  # fmt: skip
_CHECKED = _fields("Checked", level=base.Level, value=str, hint=str)
_DRY = _fields("DryRun", _PLAN, maybe=("check",), ships=Shipment, check=_CHECKED)
_STARTED = _fields("Started", maybe=("job",), run_id=str, folder=str, job=str)
_HANDED_OVER = _fields("HandedOver", run_id=str, supervisor=str)
_FOLLOWED = _fields("Followed", RunState, result=Object | None, folder=str)
_OF_A_SUBMIT: Final = {
    "": _STARTED,
    "with `supervisor:` in the profile": _HANDED_OVER,
    "--follow": _FOLLOWED,
    "--dry-run": _DRY,
}
_EVENT = _fields(
    "Event", is_open=True, maybe=("mono", "seq", "node"), kind=Literal.__getitem__(tuple(sorted(KINDS))), time=float,
    mono=float | None, seq=int | None, node=int | None,
)  # fmt: skip
_CANCELLED = _fields("Cancelled", RunState, proofs=list[base.NodeProof])
_SAMPLE = _fields(
    "Sample", samples.Sample, maybe=_hints(samples.Sample),
    ranks=_list(_fields("RankSample", samples.RankSample, maybe=_hints(samples.RankSample))),
    gpus=_list(_fields("GpuSample", samples.GpuSample, maybe=_hints(samples.GpuSample))),
)  # fmt: skip
_USE = _fields(
    "Use", run_id=str, findings=list[findings.Finding], slow=dict[str, float],
    nodes=_list(_fields("NodeUse", node=int, host=str | None, samples=_list(_SAMPLE))),
)  # fmt: skip
_CHECKPOINT = _fields(
    "Checkpoint", Checkpoint, step=int | None, path=str, metric=dict[str, float | None], files=dict[str, str]
)
_OUTPUT = _fields("Output", path=str, file=str, bytes=int, node=int)
_OUTPUTS = _fields("Outputs", files=_list(_OUTPUT), passed_over=list[str], left=list[LeftOutputs])
_COPIED = _fields(
    "Copied", maybe=("blake3", "sha256"), path=str, bytes=int, how=Literal["copied", "continued", "kept"], blake3=str,
    sha256=str,
)  # fmt: skip
_PULLED = _fields("Pulled", Pulled, files=_list(_COPIED), skipped=list[str])
_CURVE = _fields("Curve", run_id=str, metric=str, points=list[tuple[float, float]])
_BUNDLE = _fields("Bundle", file=str, unknown_secrets=list[str], members=_list(_fields("Member", path=str, bytes=int)))
_MACHINE = _fields(
    "Machine", is_open=True, maybe=("cores", "gpus", "free", "python", "places", "tickets", "uid", "now"), host=str,
    spare=bool, cores=int, gpus=JsonValue, free=int, python=str, places=dict[str, Object | None],
    tickets=list[Object], uid=int, now=int,
)  # fmt: skip
_SILENT = _fields("Silent", host=str, spare=bool, problem=str)
_HOLDINGS = _list(_SILENT | _MACHINE) | list[Partition]
_SUM = _fields("Sum", usage.Used, maybe=("profile", "job", "user"), profile=str, job=str, user=str)
_OF_RUN = _fields("UseOfRun", usage.Used, run=str, job=JobUse | None)
_PROFILE = _fields(
    "Profile", profile=str, kind=str, nodes=int | None, nproc_per_node=int | str | list[int] | None,
    runtime=str | None, where=str,
)  # fmt: skip
_LAUNCH = _fields(
    "Configuration", name=str, type=str, request=str, connect=_fields("Connect", host=str, port=int),
    pathMappings=list[Object], justMyCode=bool,
)  # fmt: skip
_LABELS = dict[str, Labels]

OUTPUTS: Final[dict[str, Forms]] = {
    "submit": {
        **_OF_A_SUBMIT,
        "--sweep or --search": _fields("Swept", sweep=str, runs=list[str], folder=str),
        "--sweep, with `supervisor:` in the profile": _fields("SweptThere", sweep=str, supervisor=str),
    },
    "run": _OF_A_SUBMIT,
    "plan": {"": _PLAN, "two profiles": _list(_PLAN)},
    "status": {"": _list(_ROW), "RUN": _PAGE, "SWEEP": _SWEEP, "--all-users": _list(_SHARED)},
    "metrics": {"RUN": _USE},
    "events": {"RUN: each line": _EVENT},
    "why": {"RUN": Verdict | None},
    "wait": {"RUN": RunState, "SWEEP": list[RunState]},
    "cancel": {"RUN": _CANCELLED, "several runs": _list(_CANCELLED)},
    "tag": {"RUN": _LABELS},
    "note": {"RUN": _LABELS},
    "checkpoints": {"RUN": _list(_CHECKPOINT)},
    "outputs": {"RUN": _OUTPUTS},
    "pull": {"RUN": _PULLED, "RUN --in-place": placing.Placed},
    "best": {"": list[Ranked]},
    "plot": {"RUN": _list(_CURVE)},
    "diff": {"RUN RUN": diff.Comparison},
    "bundle": {"RUN": _BUNDLE},
    "stacks": {"RUN": stacks.Look},
    "profile": {"RUN": profiling.Profiled},
    "debug": {"JOB or RUN": _LAUNCH},
    "drill": {"PROFILE": list[drill.Report]},
    "doctor": {"": list[base.Check | bandwidth.Figure]},
    "nodes": {
        "--profile": _HOLDINGS,
        "": _mapping(_HOLDINGS | _fields("Unknown", problem=str)),
    },
    "queue": {"": _list(_SHARED)},
    "usage": {"": _list(_SUM), "RUN": _list(_OF_RUN)},
    "gc": {"": list[base.Finding]},
    "profiles": {"": _list(_PROFILE)},
}
"""The types of the output of every command that has --json."""


class _AsPrinted(GenerateJsonSchema):
    """Generates the schemas. A field with a default is marked as required, because it is always printed."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Return True if every output has the field."""
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def default_schema(self, schema: Any) -> Any:
        """Return the field's schema without a default, because every output has the field's actual value."""
        return self.generate_inner(schema["schema"])


def output_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of the JSON that a command prints with --json."""
    forms = OUTPUTS[command]
    made = {form: _schema(kind) for form, kind in forms.items()}
    definitions = {name: each for schema in made.values() for name, each in schema.pop("$defs", {}).items()}
    described = [
        {**schema, "description": " ".join(["orch", command, *filter(None, [form]), "--json"])}
        for form, schema in made.items()
    ]
    body = described[0] if len(described) == 1 else {"anyOf": described}
    head = {"$schema": DIALECT, "$id": f"urn:orch:schema:output:{command}:1", "title": f"orch {command} --json"}
    return {**head, **body, **({"$defs": dict(sorted(definitions.items()))} if definitions else {})}


def _schema(kind: Any) -> dict[str, Any]:
    schema = TypeAdapter(kind).json_schema(mode="serialization", schema_generator=_AsPrinted)
    found: dict[str, Any] = tidied(schema)
    return found
