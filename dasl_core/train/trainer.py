"""The training loop and its step."""

from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from dasl_core.data.loader import Batch, EpochLoader
from dasl_core.distributed import all_ranks, broadcast_int, rank, world_size
from dasl_core.methods import Method, Step
from dasl_core.models.backbone import depends_on_mode
from dasl_core.models.batchnorm import average_statistics
from dasl_core.regularizers import angular_update
from dasl_core.seeds import derive_seed
from dasl_core.train.certificate import digest_weights, environment, is_entry
from dasl_core.train.checkpointing import Checkpointer
from dasl_core.train.collapse import CollapsedError
from dasl_core.train.criterion import Criterion
from dasl_core.train.data_parallel import wrap_ddp
from dasl_core.train.gradients import GradientComputer, total
from dasl_core.train.interruption import Interrupted
from dasl_core.train.optim import set_schedules
from dasl_core.train.outcomes import DivergenceGuard, Outcomes
from dasl_core.train.prefetch import ViewPrefetcher
from dasl_core.train.run import Run
from dasl_core.train.step_metrics import StepMetrics
from dasl_core.train.update import Updater
from dasl_core.train.validation import Validator
from dasl_core.vocabulary import TrainingOutcome

# Number of images whose embeddings are compared before and after an update.
PROBE_IMAGES = 32


@dataclass
class Trainer:
    """Trains to the end of the run, or until it is cancelled or paused.

    `dasl_core.train.build` builds the components. All ranks run the same steps.
    """

    run: Run
    method: Method
    criterion: Criterion
    gradients: GradientComputer
    updater: Updater
    metrics: StepMetrics
    guard: DivergenceGuard
    validator: Validator
    checkpointer: Checkpointer
    prefetcher: ViewPrefetcher
    outcomes: Outcomes

    @property
    def loader(self) -> EpochLoader:
        """Batches of the training images."""
        return self.run.data.loader

    def train(self) -> TrainingOutcome:
        """Run epochs of steps, with evaluations and checkpoints between epochs.

        A stopped run saves a checkpoint from which the next one resumes exactly. An interrupted evaluation is repeated
        by the resumed run.

        Raises:
            CollapsedError: the representation has collapsed, and `train.collapse` is "stop".
            DivergedError: the loss or the weights are not finite.
            CheckpointFailed: a required checkpoint could not be written.
            Exception: as `Checkpointer.check_write`.
        """
        try:
            self._start()
        except Interrupted as stop:
            return stop.outcome  # nothing is trained since the checkpoint to resume from
        run, per_epoch = self.run, self.run.length.steps_per_epoch
        try:
            first, last = run.progress.step, run.length.total_steps
            read_ahead = self.loader.batches(first, last, self.prefetcher.pin)
            with closing(self.prefetcher.batches(read_ahead, first)) as batches:
                while not self._is_over():
                    epoch, first_step = divmod(run.progress.step, per_epoch)
                    self.begin_epoch(epoch)
                    for batch in islice(batches, per_epoch - first_step):
                        self.checkpointer.check_write()
                        if run.interruption.check_step(save=self.checkpointer.is_overdue()):
                            self._report()
                            self._save(required=False)
                        self.step(batch)
                        if run.progress.step % per_epoch:  # else close it first
                            self._stop_if_collapsed()
                    self.end_epoch()
                    self._evaluate_and_save()
            self._finish()
        except Interrupted as stop:
            self._report()
            self._save(required=True)
            return stop.outcome
        self.validator.publish_plots(self.checkpointer.certificate)
        return "succeeded"

    def replay(self, last: int) -> dict[str, Any]:
        """Train from the start or the checkpoint to a step of the same epoch; return its entry of the chain."""
        if self.checkpointer.resume():
            self.metrics.restore_alarm()
        first = self.run.progress.step
        read_ahead = self.loader.batches(first, last, self.prefetcher.pin)
        with closing(self.prefetcher.batches(read_ahead, first)) as batches:
            self.begin_epoch(first // self.run.length.steps_per_epoch)
            for batch in batches:
                self.step(batch)
        return self.run.progress.chain[-1]

    def begin_epoch(self, epoch: int) -> None:
        """Set the training mode; freeze the backbone in the epochs of the heads, and thaw it after them."""
        frozen = epoch < self.run.spec.train.head_only_epochs
        if frozen != self.method.backbone_is_frozen:
            if frozen:
                self.method.freeze_backbone()
            else:
                self.method.thaw_backbone()
            if self.gradients.sharded is None:
                # DDP must know the weights that learn.
                self.gradients.model = wrap_ddp(self.method, self.run.timer)
        self.method.train()

    def step(self, batch: Batch) -> None:
        """Run one optimizer step on one global batch."""
        progress, length, all_labels = self.run.progress, self.run.length, self.run.data.labels
        index, per_epoch = progress.step, length.steps_per_epoch
        labels = None if all_labels is None else all_labels[batch.indices]
        step = Step(index, length.total_steps, per_epoch, batch.indices, labels, all_ranks())
        lr = set_schedules(self.updater.optimizer, index, per_epoch, self.run.spec.train)
        views = self.prefetcher.views(batch, index)
        share, seed = len(batch.canvases), self.run.spec.train.seed
        images = range(rank() * share, (rank() + 1) * share)  # of the global batch
        masks = self.method.draw_masks([derive_seed(seed, "method", index, i) for i in images])
        self.updater.snapshot_buffers()
        reported, probed = self.metrics.is_due(index), self.metrics.is_probed(index)
        # The first step of the run, and of the backbone after the epochs of the heads.
        first = index in (0, self.run.spec.train.head_only_epochs * per_epoch)
        terms, outputs = self.gradients.backward(
            views, step, masks, measure_shares=reported or first
        )
        if world_size() > 1 and not self.run.spec.train.sync_batch_norm:
            average_statistics(self.method)
        # Before unscaling, which checks for overflow: frozen weights have no gradient to check.
        self.method.before_update(step)
        self.updater.unscale()
        embeddings = outputs["embeddings"]
        before = None
        if probed:
            # The step has them unless it masked the images, or the network computes something else in training.
            own = self.run.spec.backbone.is_own
            is_known = masks is None and not own and not depends_on_mode(self.method)
            before = embeddings[0, :PROBE_IMAGES] if is_known else self._probe(views)
        with self.run.timer.span("optimizer"):
            norm, updated = self.updater.apply()
        if updated is not False:  # a tensor that the device may still compute
            on_device = updated if isinstance(updated, Tensor) else None
            self.method.after_update(replace(step, updated=on_device))
        if self.criterion.pseudo_labels is not None:
            self.criterion.pseudo_labels.observe(embeddings, batch.indices)
        progress.step += 1
        metrics = terms | {
            "loss": total(terms),
            "lr": torch.full((), lr, dtype=torch.float64, device=norm.device),
            "gradient_norm": norm,
        }
        metrics |= self.criterion.metrics() | self.method.metrics(outputs, step)
        if before is not None:
            metrics["angular_update"] = angular_update(before, self._probe(views))
        self.metrics.add(metrics, embeddings, spread=reported)
        overflowed = self.updater.overflowed
        self.outcomes.record(progress.step, batch.indices, updated, overflowed=overflowed)
        ends_entry = is_entry(progress.step, per_epoch)
        if reported or ends_entry:
            # Only at these steps, which a resumed run reports too.
            shares = self.criterion.share_measurements() if reported else None
            self.metrics.hold(watched=True, beside=shares)
        if ends_entry:
            self._report()
            progress.add_entry(self._digest())
        else:
            self._count_steps(wait=False)
            self._deliver(self.outcomes.in_flight)

    def _digest(self) -> str:
        """Compute the SHA-256 of the weights on rank 0; "" on the others."""
        if rank() > 0 and self.gradients.sharded is None:
            return ""
        digest = digest_weights(self.method.state_dict())  # gathers shards from all ranks
        return digest if rank() == 0 else ""

    def _count_steps(self, *, wait: bool) -> None:
        """Count the steps whose outcome is due, and forget what the skipped ones left; see `Outcomes`."""
        for outcome in self.outcomes.take_due(wait=wait):
            if not outcome.updated and self.criterion.pseudo_labels is not None:
                self.criterion.pseudo_labels.forget(outcome.age)
            self.guard.count(outcome)

    def _report(self) -> None:
        """Report all steps, with their outcomes, which waits for the device."""
        self._count_steps(wait=True)
        self.metrics.hold()
        self._deliver()

    def _deliver(self, in_flight: int = 0) -> None:
        """Report what is held, except that of the newest steps, which the device may not have computed."""
        for step, shares in self.metrics.deliver(in_flight):
            total_steps = self.run.length.total_steps
            for warning in self.criterion.share_warnings(step - 1, total_steps, shares):
                self.run.reporter.event("gradient_share", *warning)

    def end_epoch(self) -> None:
        """Close the epoch: check the images, record the mean loss, cluster the embeddings."""
        self.run.data.check_images(self.run.reporter, self.run.control)
        self.run.progress.close_epoch()
        if self.criterion.pseudo_labels is not None:
            epochs = len(self.run.progress.losses)
            quality = self.criterion.pseudo_labels.end_epoch(
                epochs, self.run.data.train_labels(), self.run.reporter.keepalive
            )
            self.metrics.report_clusters(quality)
        self.guard.check_updated(self.run.length.total_steps)

    def _evaluate_and_save(self) -> None:
        """Evaluate the backbone and save a checkpoint, where they are due after the last epoch."""
        epochs = self.run.progress.step // self.run.length.steps_per_epoch
        if epochs == self.run.length.epochs:
            return  # `_finish` does both
        if self.validator.is_due(epochs):
            self.run.interruption.check_work()
            self.validator.evaluate("backbone")
        self._stop_if_collapsed()
        if self.checkpointer.is_due(epochs) and not self._is_over():
            self._save(required=False)

    def close(self) -> None:
        """Stop all threads, and unfreeze the backbone, which may belong to the caller."""
        self.checkpointer.close()
        self.method.thaw_backbone()
        self.run.data.close()

    def _start(self) -> None:
        """Resume from a checkpoint, or evaluate the baselines."""
        self.run.data.check_images(self.run.reporter, self.run.control)
        total_steps = self.run.length.total_steps
        is_resumed = self.checkpointer.resume()
        self.run.progress.enter(environment(self.run.device))
        if is_resumed:
            self.metrics.restore_alarm()
            if self.validator.is_owed():
                self.checkpointer.saved_step = None  # the evaluation belongs to the checkpoint
                self._evaluate_and_save()
            elif self.run.progress.ended or not self._is_over():
                self._stop_if_collapsed()  # the process was killed after saving, before reporting it
        else:
            self.validator.evaluate_baselines()
        step = self.run.progress.step
        if not self._is_over():
            begins = f"resumes after step {step}" if step else "begins"
            self.run.reporter.phase("training", f"Training {begins}; {total_steps} steps in total")
            self.metrics.reset_timer()

    def _finish(self) -> None:
        """Run the final evaluation and save the final checkpoint.

        Idempotent: a run that was killed here repeats it.
        """
        if self.run.progress.ended:
            self.validator.repeat_final_reports()
            return
        stop = self.validator.early_stop()
        if stop is not None and self.run.progress.step < self.run.length.total_steps:
            self.run.reporter.event("stopped_early", *stop)
        if self.validator.evaluator is not None:
            self.run.reporter.phase("final", "Running the final evaluation")
        if self.validator.trains_at_end:
            self._save(required=False)  # a probe or fine-tuning may take hours, and may fail
        self.validator.evaluate_at_end()
        self.validator.judge()
        self.run.progress.ended = True
        self.checkpointer.saved_step = None  # the evaluation belongs to the final checkpoint
        self._stop_if_collapsed()
        self._save(required=True)

    def _is_over(self) -> bool:
        """Whether no step is left: after the last epoch, or by `train.stop`. Rank 0 decides for all."""
        if self.run.progress.ended or self.run.progress.step >= self.run.length.total_steps:
            return True
        return bool(broadcast_int(int(self.validator.early_stop() is not None), self.run.control))

    def _save(self, *, required: bool) -> None:
        self._report()  # a checkpoint counts them
        self.checkpointer.save(required=required)
        self.metrics.reset_timer()

    def _stop_if_collapsed(self) -> None:
        """End a collapsed run with a checkpoint, if `train.collapse` is "stop"."""
        if self.run.progress.collapsed is not None:
            self._save(required=True)
            raise CollapsedError(self.run.progress.collapsed)

    @torch.no_grad()
    def _probe(self, views: list[Tensor]) -> Tensor:
        """Embed a few of the batch's images in eval mode, (P, h).

        Their rotation in one update shows how fast the network learns, as in the SEC paper.
        """
        self.method.eval()
        with self.gradients.autocast():
            embeddings = self.gradients.embed(views[0][:PROBE_IMAGES])
        self.method.train()
        return embeddings
