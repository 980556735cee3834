"""Reads what trackers have got, by their own packages: of .venv-trackers, as JSON on stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def of_tensorboard(folder: str) -> dict[str, Any]:
    """Return the curves and texts of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(folder).Reload()
    tags = found.Tags()
    curves = {tag: [[each.step, each.value, each.wall_time] for each in found.Scalars(tag)] for tag in tags["scalars"]}
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
    return {"curves": curves, "texts": texts}


def of_mlflow(address: str, experiment: str) -> list[dict[str, Any]]:
    """Return all runs of an experiment, with every value that was kept."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(address)
    of_name = client.get_experiment_by_name(experiment)
    runs = client.search_runs([of_name.experiment_id]) if of_name is not None else []
    return [
        {
            "id": run.info.run_id, "status": run.info.status, "ended": run.info.end_time, "name": run.info.run_name,
            "params": run.data.params, "tags": run.data.tags,
            "curves": {
                key: [[each.step, each.value] for each in client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
        }
        for run in runs
    ]  # fmt: skip


def of_wandb(folder: str) -> list[dict[str, Any]]:
    """Return the rows of an offline folder's log: blocks of 32 KiB, in which records have a head of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    (path,) = Path(folder).glob("offline-run-*/*.wandb")
    data, position, rows, begun = path.read_bytes(), 7, [], b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # no head fits: the next block
            position += 32768 - position % 32768
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        begun += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(begun)
            begun = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items})
    return rows


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(json.dumps({"tensorboard": of_tensorboard, "mlflow": of_mlflow, "wandb": of_wandb}[what](*arguments)))
