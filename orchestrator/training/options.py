"""The command line of `python -m orchestrator.training`, checked before torch is imported."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from orchestrator.protocol.frozen import default_of
from orchestrator.protocol.metric import JobMetric, kept_by
from orchestrator.protocol.training_options import TrainingOptions, not_taken
from orchestrator.training.distributed.ranks import whole_number
from orchestrator.training.errors import UserError

LENGTH: Final = ("epochs", "steps")  # the options that exclude each other


class Options(TrainingOptions):
    """The options of a training, with defaults filled in. Tasks receive them as their argument."""

    task: Path
    lr: float
    workers: int | None  # None: the rank's share of the cores
    data: Path
    options: dict[str, Any]

    @property
    def data_dir(self) -> Path:
        """Return the folder of the data."""
        return self.data

    @property
    def extra(self) -> Mapping[str, Any]:
        """Return the task's own options, which `--option NAME=VALUE` sets."""
        return self.options


@dataclass(frozen=True)
class Places:
    """The paths and settings of a run, from the ORCH_* variables.

    `resume` is auto, never or a path. `reports_metrics` tells whether ORCH_METRICS_FILE is set; if it is not, the
    user's own scripts write no metrics.
    """

    checkpoints: Path
    keep: int
    keep_best: JobMetric | None
    resume: str
    attempt: int
    run_id: str
    metrics: Path
    reports_metrics: bool
    result: Path | None
    heartbeat: Path | None
    second_copy: Path | None
    backend: str
    device: str


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line. If it is wrong, argparse exits with code 2. Raises UserError if the strategy does not
    support an option.
    """
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.training",
        description="Train a task file on one device or several; see docs/training.md.",
    )
    length, hints = parser.add_mutually_exclusive_group(), get_type_hints(TrainingOptions)
    for each in fields(TrainingOptions):
        (length if each.name in LENGTH else parser).add_argument(*_names(each), **_argument(each, hints[each.name]))
    values = vars(parser.parse_args(arguments))
    given = [each.name for each in fields(TrainingOptions) if values[each.name] != default_of(each)]
    for name, why in not_taken(values["strategy"], given).items():
        raise UserError(f"{_flag(name)} does not work with the strategy {values['strategy']}: {why}.")
    values["epochs"] = values["epochs"] if values["epochs"] or values["steps"] else 1
    values["task"] = Path(values["task"])
    values["data"] = Path(values["data"] or cache_dir()).expanduser()
    values["workers"] = None if values["workers"] == "auto" else values["workers"]
    values["options"] = dict(values["options"])
    return Options(**values)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _names(each: Field[Any]) -> tuple[str, ...]:
    return ("--option",) if each.name == "options" else (_flag(each.name),)


def _argument(each: Field[Any], hint: Any) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a field of TrainingOptions."""
    default = default_of(each)
    about: dict[str, Any] = {"dest": each.name, "help": _help_of(each)}
    if each.name == "options":
        return {**about, "type": _pair, "action": "append", "default": [], "metavar": each.metadata["unit"]}
    if hint is bool:
        return {**about, "action": argparse.BooleanOptionalAction if default else "store_true", "default": default}
    parts = [part for part in get_args(hint) or (hint,) if part is not type(None)]
    words = [word for part in (hint, *parts) if get_origin(part) is Literal for word in get_args(part)]
    kind = next((part for part in parts if part in (int, float, str)), None)
    about |= {"default": None, "required": True} if default is MISSING else {"default": default}
    if kind is None:
        return {**about, "choices": words}
    return {**about, "type": _reader(each, kind, words), "metavar": each.metadata.get("unit", "N")}


def description_of(each: Field[Any]) -> str:
    """Return the description of an option, without its default."""
    return "; ".join(filter(None, [each.metadata["description"], each.metadata.get("more")]))


def _help_of(each: Field[Any]) -> str:
    """Return the help of an option: its description and, if it is a number or a word, its default."""
    text = description_of(each)
    default = each.metadata.get("unset", default_of(each))
    shows_default = default not in (None, MISSING) and not isinstance(default, bool | dict)
    return f"{text} (default {default})" if shows_default else text


def _reader(each: Field[Any], kind: type, words: Sequence[str]) -> Callable[[str], Any]:
    """Return the function that converts an option's value on the command line."""

    def read(text: str) -> Any:
        if text in words:
            return text
        value = kind(text)
        least, above = each.metadata.get("least", -math.inf), each.metadata.get("above", -math.inf)
        if kind is not str and not (math.isfinite(value) and value >= least and value > above):
            raise argparse.ArgumentTypeError(f"must be {least} or more" if above == -math.inf else "must be positive")
        return _meeting_point(text) if each.name == "init_method" else value

    read.__name__ = kind.__name__  # argparse's own error message contains this name
    return read


def read_places(environ: Mapping[str, str] = os.environ) -> Places:
    """Read the paths and settings in the ORCH_* variables. The defaults are for ranks that torchrun has started
    without orch.
    """
    result, heartbeat = environ.get("ORCH_RESULT_FILE"), environ.get("ORCH_BEAT_FILE")
    second = environ.get("ORCH_SECOND_COPY")
    return Places(
        checkpoints=Path(environ.get("ORCH_CHECKPOINT_DIR") or "checkpoints"),
        keep=max(1, whole_number(environ, "ORCH_CHECKPOINT_KEEP", 3)),
        keep_best=kept_by(environ.get("ORCH_CHECKPOINT_KEEP_BEST", ""), environ.get("ORCH_CHECKPOINT_BETTER", "")),
        resume=environ.get("ORCH_RESUME") or "auto",
        attempt=whole_number(environ, "ORCH_ATTEMPT", 0),
        run_id=environ.get("ORCH_RUN_ID", ""),
        metrics=Path(environ.get("ORCH_METRICS_FILE") or "metrics.jsonl"),
        reports_metrics="ORCH_METRICS_FILE" in environ,
        result=Path(result) if result else None,
        heartbeat=Path(heartbeat) if heartbeat else None,
        second_copy=Path(second) if second else None,
        backend=environ.get("ORCH_BACKEND") or "auto",
        device=environ.get("ORCH_DEVICE") or "auto",
    )


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for data sets: $ORCH_DATA_DIR, or else orch/data in the user's cache folder."""
    if environ.get("ORCH_DATA_DIR"):
        return Path(environ["ORCH_DATA_DIR"])
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "orch" / "data"


def check_batch(global_batch: int, world_size: int) -> None:
    """Raise UserError, with the nearest valid sizes, if the ranks can't share the global batch evenly."""
    if global_batch % world_size == 0:
        return
    below = global_batch // world_size * world_size
    nearest = f"{below} and {below + world_size}" if below else f"{world_size} and {2 * world_size}"
    raise UserError(
        f"A global batch of {global_batch} can't be shared evenly by {world_size} ranks: "
        f"the nearest that can are {nearest} (--global-batch)."
    )


def _meeting_point(text: str) -> str:
    url = urlsplit(text)
    try:
        is_tcp = url.scheme == "tcp" and bool(url.hostname and url.port) and not url.path
    except ValueError:
        is_tcp = False
    if text != "env://" and not is_tcp:
        raise argparse.ArgumentTypeError(f"{text!r} is neither env:// nor tcp://HOST:PORT")
    return text


def _pair(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
