"""The training program. Its phases are: join, load, resume; then step, save and evaluate until the training is done
or stopped.
"""

import gc
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest
from orchestrator.training import precision, schedule
from orchestrator.training.checkpoint import random_state
from orchestrator.training.checkpoint.resume import SHARDED, Loaded, load_for_all, whole
from orchestrator.training.checkpoint.saver import Saver
from orchestrator.training.data import loading
from orchestrator.training.data.sampler import SAMPLERS, Sampler, Share
from orchestrator.training.data.samples import Tensors, count
from orchestrator.training.data.task import Task, load_data, load_task
from orchestrator.training.distributed import group
from orchestrator.training.distributed.cores import stay_near
from orchestrator.training.distributed.devices import Choice, choose
from orchestrator.training.distributed.ranks import Ranks, read_ranks
from orchestrator.training.distributed.stop import Agreement
from orchestrator.training.errors import EXIT_REQUEUE, CheckpointError, DivergedError, UserError
from orchestrator.training.options import Options, Places, check_batch
from orchestrator.training.progress.evaluate import Evaluation, evaluate
from orchestrator.training.progress.heartbeat import Heartbeat, HeartbeatFile
from orchestrator.training.progress.position import Position, total_steps
from orchestrator.training.progress.profiling import Profiler, record_memory
from orchestrator.training.progress.report import Meter, Reporter, measure
from orchestrator.training.progress.throughput import Utilization, in_progress_line
from orchestrator.training.strategies import Setup, find


def train(options: Options, places: Places) -> int:
    """Run a whole training. Return the exit code: 0 when the training is done, or 95 after a stop signal."""
    ranks = read_ranks()
    # a restart on fewer nodes may have shares that differ by a sample
    if places.attempt == 0 or options.sampler != "exact":
        check_batch(options.global_batch, find(options.strategy).data_part(options, ranks)[0])
    task = load_task(options.task)
    _choose_algorithms(options.deterministic, task.cudnn_benchmark)
    chosen, bound = _chosen(options, places, ranks), ""
    if isinstance(chosen, Choice) and not find(options.strategy).one_process:
        # This comes before NCCL and the data loaders start threads, and before memory is pinned.
        bound = stay_near(chosen.device, ranks)
    with group.joined(ranks, chosen, options.init_method, options.timeout) as agreed:
        choice = replace(agreed, reason=f"{agreed.reason}; {bound}") if bound else agreed
        options = replace(options, precision=precision.resolve(options.precision, choice.device))
        precision.set_up(options.precision, choice.device)
        if options.memory_history and choice.device.type == "cuda":
            record_memory()
        return _train(options, places, ranks, choice, task)


def _chosen(options: Options, places: Places, ranks: Ranks) -> Choice | UserError:
    """Return this rank's choice of backend and device, or its error.

    The error is not raised yet, because all ranks must learn about it before one of them exits.
    """
    try:
        return choose(places.backend, ranks, options.device if options.device != "auto" else places.device)
    except UserError as error:
        return error


def _choose_algorithms(deterministic: bool, cudnn_benchmark: bool) -> None:
    """With `deterministic`, let torch use only deterministic algorithms, and raise an error for operations that have
    none. Otherwise undo this setting.

    With `cudnn_benchmark` and without `deterministic`, cuDNN may time its algorithms and choose the fastest.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads this variable at its first use
    torch.backends.cudnn.benchmark = cudnn_benchmark and not deterministic
    torch.use_deterministic_algorithms(deterministic)


def _train(options: Options, places: Places, ranks: Ranks, choice: Choice, task: Task) -> int:
    """Train within the process group. This is a separate function, because no reference to DDP may outlive the
    group.
    """
    trainer = Trainer(options, places, ranks, choice, task)
    try:
        return trainer.run()
    except RuntimeError as error:
        if lost := loading.lost_worker(error, ranks.rank):
            raise lost from error
        raise
    finally:
        trainer.close()


class Trainer:
    """The training on one rank. The methods are its phases, in order."""

    def __init__(self, options: Options, places: Places, ranks: Ranks, choice: Choice, task: Task) -> None:
        self.options, self.ranks, self.task, self.device = options, ranks, task, choice.device
        self.choice = choice
        self.kind = find(options.strategy)
        self.setup = Setup(options, task, ranks, choice.device, grouped=bool(choice.backend))
        self.started = time.monotonic()
        self.heartbeats = HeartbeatFile(places.heartbeat)
        self.heartbeats.write(Heartbeat())
        self.report = Reporter(places.metrics, places.result, speaks=ranks.rank == 0, attempt=places.attempt)
        self.report.say(
            f"backend {choice.backend or 'none'} on {choice.device.type} ({choice.reason})  "
            f"strategy {options.strategy}  world size {ranks.world_size}  global batch {options.global_batch}"
        )
        if options.precision == "tf32":
            self.report.say("float32 is multiplied in TF32, with 10 bits of mantissa; --precision fp32 keeps all 23")
        self.profiler = Profiler(places.heartbeat, ranks.rank, keeps_history=options.memory_history)
        self.stop = Agreement()
        self.meter = Meter()
        self._first = True
        self._loss = torch.zeros(())
        self._good: tuple[int, float] | None = None
        self.position = Position()
        self.evaluation: Evaluation | None = None
        self.keeps_best = places.keep_best is not None
        self.saver = Saver(places, self.report, self.heartbeats, aside=options.async_save)
        self.data = load_data(task, options, self.report.warn)
        if self.data.stand_in and options.offline_epochs and not options.steps:
            if options.epochs != options.offline_epochs:
                counts = f"{options.offline_epochs} epochs of it (offline_epochs), not {options.epochs} (epochs)"
                self.report.say(counts)
            options = self.options = replace(options, epochs=options.offline_epochs)
            self.setup = replace(self.setup, options=options)
        self.train_samples, self.test_samples = (
            loading.source(samples, part, task, options, ranks, choice.device)
            for samples, part in ((self.data.train, "training"), (self.data.test, "test"))
        )
        if self.train_samples.note:
            self.report.say(f"{self.data.name}: {self.train_samples.note}")
        parts, mine = self.kind.data_part(options, ranks)
        self.sampler: Sampler = SAMPLERS[options.sampler](
            count(self.data.train),
            options.global_batch,
            rank=mine,
            world_size=parts,
            seed=options.seed,
        )
        loaded = load_for_all(places, self.report.warn)
        self._build()
        self._resume(loaded)
        self.total = total_steps(options, self.position, self.sampler.samples)
        self.used = Utilization(self.strategy.devices, ranks.world_size, options.precision)
        if self.used.is_measured:
            self.used.measure(self.strategy, self._first_batch()[0])
        self.has_schedule = options.schedule != "constant" or options.warmup > 0

    def _build(self) -> None:
        """Build the model and the optimizer. Their initial state is the same on all ranks. Then seed this rank's
        generators.
        """
        random_state.seed_everything(self.options.seed)
        self.strategy = self.kind(self.setup, self.kind.make(self.setup))
        self._seed_rank(step=0)

    def _seed_rank(self, step: int) -> None:
        """Seed this rank's generators for the steps from `step` on.

        Ranks that share layers also share samples, so they get the same seed. Other ranks get different seeds.
        """
        part = self.ranks.rank // self.options.tensor_ranks
        random_state.seed_everything(random_state.seed_for(self.options.seed, step, part))

    def _first_batch(self) -> tuple[Tensors, Share]:
        """Return the first batch of the training."""
        [batch] = self.train_samples.batches([next(self._shares(0))])
        return batch

    def _resume(self, loaded: Loaded | None) -> None:
        """Restore the state from the checkpoint `loaded`, if there is one."""
        if loaded is None:
            return
        # After its first backward pass DDP rebuilds its buckets, and with three or more ranks their layout decides the
        # order in which gradients are summed. This extra pass, without an optimizer step, gives the same layout as in
        # the unbroken run. It must come before weights, buffers and generators are restored. With a batch of full size,
        # compilation happens only once.
        self.strategy.backward(*self._first_batch())
        self.strategy.optimizer.zero_grad(set_to_none=True)
        if self.kind.saves_shards and loaded.state.get(SHARDED):
            self.strategy.load_shards(loaded.state, loaded.path)
        else:
            self.strategy.load_full(whole(loaded), str(loaded.path))
        if "scaler" in loaded.state:
            self.strategy.scaler.load_state_dict(loaded.state["scaler"])
        position, random_states = (
            random_state.part(loaded.state, name, str(loaded.path)) for name in ("position", "random")
        )
        self.position = Position(**position)
        self.saver.last_step = self.position.step
        if len(random_states) == self.ranks.world_size:
            random_state.restore_random(random_states[self.ranks.rank], *self.strategy.devices)
        else:
            self._seed_rank(self.position.step)
        self.report.say(f"resumed from {loaded.path} at step {self.position.step}, epoch {self.position.epoch}")
        self.heartbeats.resumed(self.position.step)
        self.report.metric("resume", step=self.position.step, epoch=self.position.epoch)

    def run(self) -> int:
        """Train from the present position to the end. Return the exit code: 95 after a stop, else 0."""
        if self.stop.now():
            return self._leave()
        while self.position.step < self.total:
            self.sampler.set_epoch(self.position.epoch)
            for tensors, share in self.heartbeats.waiting(self.batches()):
                if self._one_step(tensors, share):
                    return self._leave()
                if self.position.step >= self.total:
                    break
        self._save()
        if not self._metric():
            self._evaluate()
        if self.evaluation is None:
            return self._leave()
        self._finish(self.evaluation)
        return 0

    def batches(self) -> Iterator[tuple[Tensors, Share]]:
        """Yield (tensors, this rank's share) for each remaining step of the epoch. The share's indices refer to the
        tensors.
        """
        return self.train_samples.batches(self._shares(self.position.offset), self.position.epoch)

    def _shares(self, offset: int) -> Iterator[Share]:
        return self.sampler.shares(offset, self.train_samples.looked_up_on)

    def _one_step(self, tensors: Tensors, share: Share) -> bool:
        """Do one optimizer step, then evaluate and save if they are due. Return whether to stop after this step."""
        self.strategy.begin_step()
        loss = self.strategy.backward(tensors, share)
        if self.has_schedule:
            self.strategy.set_rate(
                schedule.part(self.options.schedule, self.position.step, self.total, self.options.warmup)
            )
        self.strategy.step()
        self.position = self.position.after(share.count, self.sampler.samples)
        self.meter.count(share.count)
        self.profiler.stepped()
        step, ends_epoch = self.position.step, self.position.offset == 0
        self._report_step(loss)
        if self._first:
            # The first step includes one-time work, so its speed is not counted.
            self.meter.reset()
            self._first = False
            # Objects that exist now live to the end. If the garbage collector scanned them, each rank would pause at
            # another moment, and the other ranks would wait.
            gc.collect()
            gc.freeze()
            group.set_timeout(self.options.step_timeout)
        if self.stop():
            return True
        # Evaluation comes first, so that the checkpoint has the metric of its own weights.
        is_due = step % self.options.eval_every == 0 if self.options.eval_every else ends_epoch
        if is_due or (self.keeps_best and step == self.total):
            self._evaluate()
        is_due = step % self.options.save_every == 0 if self.options.save_every else ends_epoch
        if is_due or (self.keeps_best and self._metric()):  # the weights that were just evaluated may be the best
            self._save()
        return self.stop.stopping

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """During the block, and until all ranks have left the block, use the long timeout for collectives. An
        evaluation or a save needs this timeout.
        """
        group.set_timeout(self.options.timeout)
        yield
        if self.options.timeout != self.options.step_timeout:
            group.barrier()  # without it, a rank that has finished would wait with the shorter timeout of a step
        group.set_timeout(self.options.step_timeout)

    def _report_step(self, loss: Tensor) -> None:
        """Send a heartbeat if it is due, and log the mean loss of all ranks every --log-every steps."""
        step = self.position.step
        rate, eta = (None, None) if self._first else (self.meter.rate, self._eta())
        self._loss = loss
        if step == 1 or step % self.options.log_every == 0 or step == self.total:
            mean = self._mean_loss()
            used = self.used.values(rate)
            self.report.metric("train", step=step, epoch=self.position.epoch, loss=mean, rate=rate, **used)
            more = in_progress_line(used, rate, self.data.tokens)
            self.report.progress(
                step=step, total=self.total, epoch=self.position.epoch, loss=mean, rate=rate, eta=eta, more=more
            )
        if self.heartbeats.due():
            self._beat("train", loss=loss.item() * self.strategy.data_ranks)

    def _mean_loss(self) -> float:
        """Return the mean loss of the last step over all ranks. All ranks must call this.

        Raises DivergedError on all ranks if the mean is NaN or infinite.
        """
        mean = group.sum_over_ranks([self._loss.item()])[0]
        if not math.isfinite(mean):
            raise self._diverged(f"The loss is {mean}")
        self._good = self.position.step, mean
        return mean

    def _check_weights(self) -> None:
        """Raise DivergedError if a weight is NaN or infinite, which can happen even if the loss is finite. All ranks
        must call this.
        """
        if group.sum_over_ranks([float(not self.strategy.is_finite())])[0]:
            raise self._diverged("Weights are nan or infinite")

    def _diverged(self, what: str) -> DivergedError:
        step = self.position.step
        self.report.metric("diverged", step=step, epoch=self.position.epoch)
        before = (
            f"the loss was {self._good[1]:.4g} at step {self._good[0]}" if self._good else "the loss was never finite"
        )
        return DivergedError(
            f"{what} at step {step} ({before}): training has diverged. No checkpoint holds such weights. Resume from a "
            "checkpoint with a smaller --lr, or search the inputs for NaN."
        )

    def _beat(self, phase: str, loss: float | None = None) -> None:
        self.heartbeats.write(
            Heartbeat(
                step=self.position.step,
                total=self.total,
                epoch=self.position.epoch,
                phase=phase,
                loss=loss,
                rate=self.meter.rate,
                eta=self._eta(),
            )
        )

    def _eta(self) -> float | None:
        rate = self.meter.rate
        return (self.total - self.position.step) * self.options.global_batch / rate if rate else None

    def _save(self) -> None:
        """Save a checkpoint, unless this step has a checkpoint. Training continues if the save fails."""
        if self.saver.last_step != self.position.step:
            with self._patient():
                self._save_now()

    def _save_now(self) -> None:
        self._mean_loss()
        self._check_weights()
        self._beat("save")
        random_states = group.gathered(random_state.random_state(*self.strategy.devices))
        shards: dict[str, Tensor] | None = None
        trained: dict[str, Any] | None
        if self.kind.saves_shards and self.setup.grouped and self.saver.is_shared:
            shards, trained = self.strategy.shards()
        else:
            trained = self.strategy.full_state()
        contents: dict[str, Any] | None = None
        if random_states is not None and trained is not None:
            contents = {**trained, "position": vars(self.position), "random": random_states}
            if self.strategy.scaler.is_enabled():
                contents["scaler"] = self.strategy.scaler.state_dict()
        manifest = Manifest(
            step=self.position.step,
            epoch=self.position.epoch,
            world_size=self.ranks.world_size,
            metric=self._metric(),
        )
        self.saver.save(contents, manifest, shards)
        self.saver.last_step = self.position.step
        self.meter.reset()

    def _metric(self) -> dict[str, float]:
        """Return the metrics of the present weights; empty if these weights have not been evaluated."""
        latest = self.evaluation
        return latest.values if latest is not None and latest.step == self.position.step else {}

    def _evaluate(self) -> None:
        """Evaluate on all test samples. If training is stopped meanwhile, the result is discarded."""
        self._beat("eval")
        with self._patient():
            values = evaluate(self.strategy, self.test_samples, count(self.data.test), self.stop)
        self.evaluation = Evaluation(self.position.step, values) if values is not None else None
        if values is not None:
            words = "  ".join(measure(name, value) for name, value in values.items())
            self.report.say(f"evaluated at step {self.position.step}: {words}")
            self.report.metric("eval", step=self.position.step, epoch=self.position.epoch, **values)
        self.meter.reset()

    def _leave(self) -> int:
        """Save a checkpoint, then exit the training together with all ranks, which have agreed to stop. Return the
        exit code 95.
        """
        if self.position.step:
            self._save()
        self.saver.close()
        self.report.say(
            f"stopped by a signal at step {self.position.step}; start the training again to resume from there"
        )
        self.report.metric("stop", step=self.position.step, epoch=self.position.epoch)
        self._beat("done")
        group.barrier()
        return EXIT_REQUEUE

    def _finish(self, evaluation: Evaluation) -> None:
        """Report the result, then exit the training together with all ranks."""
        seconds = time.monotonic() - self.started
        name = "accuracy" if "accuracy" in evaluation.values else "loss"
        tested = count(self.data.test)
        self.report.result(
            {
                "task": self.task.name,
                "data": self.data.name,
                "stand_in": self.data.stand_in,
                **evaluation.values,
                "test_samples": tested,
                "step": self.position.step,
                "epochs": round(self.position.epoch + self.position.offset / self.sampler.samples, 4),
                "samples": self.position.samples,
                "world_size": self.ranks.world_size,
                "global_batch": self.options.global_batch,
                "backend": self.choice.backend,
                "device": self.device.type,
                "seconds": round(seconds, 3),
            }
        )
        self.saver.close()
        self.report.say(
            f"{measure(name, evaluation.values[name])} on {tested:,} test {self.data.unit} ({self.data.name})"
        )
        self._beat("done")
        group.barrier()
        if self.heartbeats.unsaved:
            raise CheckpointError(f"Training is done, but its final weights were not saved. {self.heartbeats.unsaved}")

    def close(self) -> None:
        """Close files and end workers. This is also called after an error."""
        gc.unfreeze()
        self.profiler.close()
        self.train_samples.close()
        self.test_samples.close()
        self.saver.close()
        self.report.close()
        self.heartbeats.close()
