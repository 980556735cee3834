"""Several trainings one after the other in ranks that are forked: starting them would cost more than they do.

argv: the number of ranks, and a JSON list of [folder, [argument, ...], {variable: value}]. Each training gets a
process group of its own, at a store (its MASTER_PORT) that the caller holds. Each rank leaves its exit code and its
error in the folder of a training; one named "x-{rank}" is a folder for each rank. The first rank that fails otherwise
ends them all.
"""

import gc
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch._dynamo  # what every optimizer imports at its first step

from orchestrator.training.errors import EXIT_NO_RETRY, EXIT_USAGE, CheckpointError, DivergedError, UserError
from orchestrator.training.options import parse, read_places
from orchestrator.training.train import train

world_size, trainings = int(sys.argv[1]), json.loads(sys.argv[2])
home = Path.cwd()


def main(rank: int) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    os.environ |= {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for template, arguments, variables in trainings:
        folder = template.format(rank=rank)
        (home / folder).mkdir(parents=True, exist_ok=True)
        os.chdir(home / folder)
        os.environ |= {"ORCH_RESULT_FILE": "result.json", "ORCH_BEAT_FILE": f"beat.{rank}", **variables}
        error = ""
        try:
            code = train(parse(arguments), read_places())
        except (UserError, CheckpointError) as problem:
            code, error = EXIT_USAGE, str(problem)
        except DivergedError as problem:
            code, error = EXIT_NO_RETRY, str(problem)
        if accelerate := sys.modules.get("accelerate.state"):
            accelerate.AcceleratorState._reset_state(reset_partial_state=True)  # else it stays at the first's precision
        for name in variables:
            del os.environ[name]
        Path(f"end.{rank}.json").write_text(json.dumps({"code": code, "error": error}))


def fork(rank: int) -> int:
    if child := os.fork():
        return child
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}.{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    try:
        main(rank)
    except BaseException:  # noqa: BLE001 - it is said, and ends the process
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


# Each training looks for garbage, and looks at so many modules that this takes longer than all of its steps. So
# the modules are left out for good; that a training does this by itself is shown in test_training_starts.py.
if world_size > 1:  # the ranks share what some of the strategies import
    import accelerate  # noqa: F401
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401
gc.collect()
gc.freeze()
gc.freeze = gc.unfreeze = lambda: None

children = {fork(rank) for rank in range(world_size)}
failed = False
while children:
    ended, status = os.wait()
    children.discard(ended)
    if status and not failed:
        failed = True
        for child in children:
            os.kill(child, signal.SIGKILL)
if failed:
    print(*(f"{path.name}: {path.read_text()}" for path in sorted(home.glob("err.*.txt"))), file=sys.stderr)
sys.exit(failed)
