"""The training program, top to bottom: join, load, resume, then step, save and evaluate until done or stopped."""

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from orchestrator.protocol.checkpoint_dir import Manifest
from orchestrator.training.checkpoint import random_state
from orchestrator.training.checkpoint.resume import SHARDED, Loaded, load_for_all, whole
from orchestrator.training.checkpoint.saver import Saver
from orchestrator.training.data import loading
from orchestrator.training.data.sampler import SAMPLERS, Sampler, Share
from orchestrator.training.data.samples import Tensors, count
from orchestrator.training.data.task import Task, load_data, load_task
from orchestrator.training.distributed import group
from orchestrator.training.distributed.group import Choice, Ranks
from orchestrator.training.distributed.stop import Agreement
from orchestrator.training.errors import EXIT_REQUEUE, CheckpointError, DivergedError
from orchestrator.training.options import Options, Places, check_batch
from orchestrator.training.progress.evaluate import Evaluation, evaluate
from orchestrator.training.progress.heartbeat import Heartbeat, HeartbeatFile
from orchestrator.training.progress.position import Position, total_steps
from orchestrator.training.progress.report import Meter, Reporter, measure
from orchestrator.training.strategies import Setup, find


def train(options: Options, places: Places) -> int:
    """Run a whole training; returns the exit code, 0 when done or 95 when stopped by a signal."""
    ranks = group.read_ranks()
    goes_on = places.attempt > 0 and options.sampler == "exact"  # maybe on fewer nodes: shares may differ by a sample
    if find(options.strategy).shares_data and not goes_on:
        check_batch(options.global_batch, ranks.world_size)
    task = load_task(options.task)
    choice = group.choose(places.backend, ranks)
    with group.joined(ranks, choice, options.init_method):
        return _train(options, places, ranks, choice, task)


def _train(options: Options, places: Places, ranks: Ranks, choice: Choice, task: Task) -> int:
    """Train within the process group; a function of its own, so that no reference to DDP outlives it."""
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
    """One rank's training run; its methods are the phases, in the order in which they happen."""

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
            f"backend {choice.backend or 'none'} on {choice.device.type}: {choice.reason} "
            f"(strategy {options.strategy}, world size {ranks.world_size}, global batch {options.global_batch})"
        )
        self.stop = Agreement()
        self.meter = Meter()
        self._first = True
        self._loss = torch.zeros(())
        self._good: tuple[int, float] | None = None
        self.position = Position()
        self.evaluation: Evaluation | None = None
        self.saver = Saver(places, self.report, self.heartbeats, aside=options.async_save)
        self.data = load_data(task, options, self.report.warn)
        self.train_samples, self.test_samples = (
            loading.source(samples, part, task, options, ranks, choice.device)
            for samples, part in ((self.data.train, "training"), (self.data.test, "test"))
        )
        if self.train_samples.where:
            self.report.say(f"{self.data.name}: {self.train_samples.where}")
        self.sampler: Sampler = SAMPLERS[options.sampler](
            count(self.data.train),
            options.global_batch,
            rank=ranks.rank if self.kind.shares_data else 0,
            world_size=ranks.world_size if self.kind.shares_data else 1,
            seed=options.seed,
        )
        loaded = load_for_all(places, self.report.warn)
        self._build()
        self._resume(loaded)
        self.total = total_steps(options, self.position, self.sampler.samples)

    def _build(self) -> None:
        """Make model and optimizer: weights from the seed alone, then a generator of its own for each rank."""
        random_state.seed_everything(self.options.seed)
        self.strategy = self.kind(self.setup, self.task.model(self.options))
        random_state.seed_everything(random_state.seed_for(self.options.seed, 0, self.ranks.rank))

    def _resume(self, loaded: Loaded | None) -> None:
        """Continue where the checkpoint was taken, if there is one."""
        if loaded is None:
            return
        # DDP lays out its buckets anew after the first backward pass, and with three or more ranks the layout
        # decides the order in which gradients are summed. A pass that counts nothing makes the layout equal to
        # that of the unbroken run; it must come before weights, buffers and generators are restored.
        [batch] = self.train_samples.batches([Share(torch.empty(0, dtype=torch.int64), 1)])
        self.strategy.backward(*batch)
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
            random_state.restore_random(random_states[self.ranks.rank], self.device)
        else:
            seed = random_state.seed_for(self.options.seed, self.position.step, self.ranks.rank)
            random_state.seed_everything(seed)
        self.report.say(f"resumed from {loaded.path} at step {self.position.step}, epoch {self.position.epoch}")
        self.report.metric("resume", step=self.position.step, epoch=self.position.epoch)

    def run(self) -> int:
        """Train from the present position to the end; returns 0, or 95 when stopped."""
        if self.stop.now():
            return self._leave()
        while self.position.step < self.total:
            self.sampler.set_epoch(self.position.epoch)
            for tensors, share in self.batches():
                if self._one_step(tensors, share):
                    return self._leave()
                if self.position.step >= self.total:
                    break
        self._save()
        if self.evaluation is None or self.evaluation.step != self.position.step:
            self._evaluate()
        if self.evaluation is None:
            return self._leave()
        self._finish(self.evaluation)
        return 0

    def batches(self) -> Iterator[tuple[Tensors, Share]]:
        """Yield the rest of the epoch: for each step tensors, and this rank's share as places in them."""
        return self.train_samples.batches(self.sampler.shares(self.position.offset), self.position.epoch)

    def _one_step(self, tensors: Tensors, share: Share) -> bool:
        """Take one optimizer step and do what is due after it; returns whether to stop here."""
        self.strategy.begin_step()
        loss = self.strategy.backward(tensors, share)
        self.strategy.step()
        self.position = self.position.after(share.count, self.sampler.samples)
        self.meter.count(share.count)
        step, ends_epoch = self.position.step, self.position.offset == 0
        self._tell(loss)
        if self._first:
            # The first step pays for many things that come once; its speed tells nothing.
            self.meter.reset()
            self._first = False
        if self.stop():
            return True
        # Evaluated first, so that the checkpoint carries the metric of its own weights.
        if step % self.options.eval_every == 0 if self.options.eval_every else ends_epoch:
            self._evaluate()
        if step % self.options.save_every == 0 if self.options.save_every else ends_epoch:
            self._save()
        return self.stop.stopping

    def _tell(self, loss: Tensor) -> None:
        """Send a heartbeat if one is due, and at every --log-every steps the loss of all ranks to the log."""
        step = self.position.step
        rate, eta = (None, None) if self._first else (self.meter.rate, self._eta())
        self._loss = loss
        if step == 1 or step % self.options.log_every == 0 or step == self.total:
            mean = self._mean_loss()
            self.report.metric("train", step=step, epoch=self.position.epoch, loss=mean, rate=rate)
            self.report.progress(step=step, total=self.total, epoch=self.position.epoch, loss=mean, rate=rate, eta=eta)
        if self.heartbeats.due():
            self._beat("train", loss=loss.item() * self.strategy.data_ranks)

    def _mean_loss(self) -> float:
        """Return the last step's loss over all ranks; DivergedError on all of them for NaN or infinity; collective."""
        mean = group.sum_over_ranks([self._loss.item()])[0]
        if not math.isfinite(mean):
            raise self._diverged(f"The loss is {mean}")
        self._good = self.position.step, mean
        return mean

    def _check_weights(self) -> None:
        """Refuse to go on with weights that are no numbers: a finite loss can have had a gradient that was none."""
        if group.sum_over_ranks([float(not self.strategy.is_finite())])[0]:
            raise self._diverged("Weights are nan or infinite")

    def _diverged(self, what: str) -> DivergedError:
        step = self.position.step
        self.report.metric("diverged", step=step, epoch=self.position.epoch)
        before = f"the loss was {self._good[1]:.4g} at step {self._good[0]}" if self._good else "the loss never was one"
        return DivergedError(
            f"{what} at step {step} ({before}): training has diverged. No checkpoint holds such weights; go on from "
            "one with a smaller --lr, or look for inputs that are no numbers."
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
        """Save a checkpoint with every rank's generators; a disk that refuses does not end training."""
        if self.saver.last_step == self.position.step:
            return
        self._mean_loss()
        self._check_weights()
        self._beat("save")
        random_states = group.gathered(random_state.random_state(self.device))
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
            metric=self.evaluation.values if self.evaluation else {},
        )
        self.saver.save(contents, manifest, shards)
        self.saver.last_step = self.position.step
        self.meter.reset()

    def _evaluate(self) -> None:
        """Evaluate on all test samples; a stop in the middle leaves no evaluation."""
        self._beat("eval")
        values = evaluate(self.strategy, self.test_samples, count(self.data.test), self.stop)
        self.evaluation = Evaluation(self.position.step, values) if values is not None else None
        if values is not None:
            words = "  ".join(measure(name, value) for name, value in values.items())
            self.report.say(f"evaluated at step {self.position.step}: {words}")
            self.report.metric("eval", step=self.position.step, epoch=self.position.epoch, **values)
        self.meter.reset()

    def _leave(self) -> int:
        """Stop as agreed by all ranks: save, then leave together."""
        if self.position.step:
            self._save()
        self.saver.close()
        self.report.say(f"stopped by a signal at step {self.position.step}; start again to go on from there")
        self.report.metric("stop", step=self.position.step, epoch=self.position.epoch)
        self._beat("done")
        group.barrier()
        return EXIT_REQUEUE

    def _finish(self, evaluation: Evaluation) -> None:
        """Report the result; all ranks leave together."""
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
            raise CheckpointError(f"Training is done, and its final weights are on no disk. {self.heartbeats.unsaved}")

    def close(self) -> None:
        """Close files and end workers; also after an error."""
        self.train_samples.close()
        self.test_samples.close()
        self.saver.close()
        self.report.close()
        self.heartbeats.close()
