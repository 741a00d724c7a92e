"""Evaluations of a run: baselines, the backbone between epochs, and the final evaluation."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from dasl_core.data.image_set import spacing
from dasl_core.evaluate import NotFiniteError
from dasl_core.headlines import INSTANCE_RECALL, RECALL
from dasl_core.hits import Hits
from dasl_core.methods import Method
from dasl_core.models.backbone import feature_width
from dasl_core.models.heads import EmbeddingNetwork
from dasl_core.train.early_stop import early_stop, stop_score
from dasl_core.train.evaluation import Evaluator
from dasl_core.train.outcomes import DivergenceGuard
from dasl_core.train.plotting import Plotter
from dasl_core.train.run import Run
from dasl_core.train.sharding import ShardedMethod
from dasl_core.train.step_metrics import StepMetrics
from dasl_core.verdict import Anchors, judge
from dasl_core.vocabulary import Subject

# Maximum number of held-out images, evenly spaced, whose hits are kept: 6 KB an evaluation.
HITS_LIMIT = 16_384


@dataclass(frozen=True)
class Validator:
    """Runs the evaluations of a run, and records and reports their metrics.

    Attributes:
        evaluator: None when no images are held out; then nothing is measured.
        plotter: collects what the plots show.
        sharded: the method under FSDP, whose weights are gathered for an evaluation; None without.
    """

    run: Run
    method: Method
    evaluator: Evaluator | None
    metrics: StepMetrics
    guard: DivergenceGuard
    plotter: Plotter
    sharded: ShardedMethod | None = None

    @property
    def trains_at_end(self) -> bool:
        """Whether the final evaluation trains a probe or the network."""
        return self.evaluator is not None and self.evaluator.trains_at_end

    def is_due(self, epochs: int) -> bool:
        """Whether the backbone is evaluated after this many epochs."""
        return epochs % self.run.spec.evaluate.every_epochs == 0

    def is_owed(self) -> bool:
        """Whether a resumed run was stopped between an epoch and its evaluation."""
        step = self.run.progress.step
        epochs, steps = divmod(step, self.run.length.steps_per_epoch)
        between = steps == 0 and self.run.progress.branched_at < step < self.run.length.total_steps
        return between and self.is_due(epochs) and not self.has_measured(step)

    def has_measured(self, step: int) -> bool:
        """Whether everything is measured after this step."""
        return self.evaluator is None or any(
            record["step"] == step for record in self.run.progress.evaluations
        )

    def evaluate_baselines(self) -> None:
        """Evaluate the raw pixels and the initial network; report metrics that will not be measured."""
        self._report_unmeasured()
        if self.evaluator is None:
            return
        images = len(self.run.data.held_out)
        has_weights = self.run.spec.backbone.may_have_weights
        network = "weights to start from" if has_weights else "untrained network"
        self.run.reporter.phase(
            "baselines", f"Evaluating the {network} on {images} held-out images"
        )
        with self.metrics.timer.span("evaluation"):
            baseline = self.evaluator.raw_pixels()
        if baseline:
            self._record("raw", baseline, self._packed_hits())
        self.evaluate("start" if has_weights else "untrained")
        if (stop := self.run.spec.train.stop) is not None:
            stop_score(stop, self.run.progress.evaluations[-1]["metrics"])  # fails before training

    def early_stop(self) -> tuple[str, dict[str, Any]] | None:
        """Return why the training ends by `train.stop` at the newest evaluation; None: it continues."""
        train = self.run.spec.train
        if train.stop is None:
            return None
        # A frozen backbone cannot improve.
        frozen_steps = train.head_only_epochs * self.run.length.steps_per_epoch
        before = max(self.run.progress.branched_at, frozen_steps)
        return early_stop(
            train.stop,
            [
                record
                for record in self.run.progress.evaluations
                if record["subject"] == self.run.spec.evaluate.on and record["step"] > before
            ],
        )

    def evaluate_at_end(self) -> None:
        """Run the final evaluation, unless the last evaluation measured everything."""
        if self.trains_at_end or not self.has_measured(self.run.progress.step):
            self.evaluate("backbone", final=True)
            self.metrics.report_times()  # no step follows

    def evaluate(
        self, subject: Literal["untrained", "start", "backbone"], *, final: bool = False
    ) -> None:
        """Evaluate the backbone on held-out images, and check it for collapse.

        Distances are measured for both the features and the loss's embeddings. With ``evaluate.on: embedding``, the
        embedding is evaluated after the backbone.

        Args:
            final: also run the linear probe and fine-tuning if the spec enables them.

        Raises:
            DivergedError: the features or embeddings are not finite.
        """
        if self.evaluator is None:
            return
        of_embedding = subject == "backbone" and self.run.spec.evaluate.on == "embedding"
        observer = self.observer()
        method = self.method if self.sharded is None else self.sharded.whole(self.method)
        try:
            with self.metrics.timer.span("evaluation"):
                metrics = self.evaluator.backbone(
                    method.representation,
                    final=final,
                    observer=None if of_embedding else observer,
                )
                hits = self._packed_hits()
                metrics |= self.evaluator.phi_distances(method, observer=observer)
                embedding = None
                if of_embedding:
                    embedding = self.evaluator.frozen(
                        EmbeddingNetwork(method.backbone, method.embedding_head),
                        final=final,
                        observer=observer,
                    )
                    # Of the whole network, but the checkpoint shows the newest record.
                    embedding |= {k: v for k, v in metrics.items() if k.startswith("finetune_")}
        except NotFiniteError as error:
            # The last update broke the weights, and no loss was computed after it.
            raise self.guard.error(f"after step {self.run.progress.step}, {error}") from error
        self._record(subject, metrics, hits)
        # Last, because progress and checkpoints show the newest record.
        if embedding is not None:
            self._record("embedding", embedding)
        if observer is not None:
            newest: Subject = subject if embedding is None else "embedding"
            observer.record(self.run.progress.step, self.run.epoch, newest)
        # Includes the initial network, as a reference for a falling rank.
        watched: dict[str, float] = {
            "effective_rank": metrics.get("effective_rank", math.nan),
            "embedding_dim": self._largest_rank(),
        }
        if self.run.spec.method.supervised and self.run.data.num_classes is not None:
            watched["num_classes"] = self.run.data.num_classes
        self.metrics.watch_collapse(watched, self.run.progress.step)
        self.metrics.reset_timer()

    def _packed_hits(self) -> dict[str, str]:
        """Return which held-out images the newest evaluation gets right, by each accuracy that is judged."""
        assert self.evaluator is not None, "it has measured something"
        hits = self.evaluator.hits
        recalls = sorted(int(name.removeprefix(RECALL)) for name in hits if name.startswith(RECALL))
        judged = ("knn_top1", *(f"{RECALL}{k}" for k in recalls[:1]), INSTANCE_RECALL)
        return {
            name: Hits.pack(hits[name][:: spacing(len(hits[name]), HITS_LIMIT)].tolist()).encode()
            for name in judged
            if name in hits
        }

    def _largest_rank(self) -> int:
        """Return the largest possible effective rank, which the number of images limits, too."""
        return min(feature_width(self.method.representation), len(self.run.data.held_out))

    def judge(self) -> None:
        """Record and report the verdict on the finished training, if anything was measured."""
        in_gallery = None if self.evaluator is None else self.evaluator.in_gallery
        verdict = judge(
            self.run.progress.evaluations,
            self.metrics.collapsed,
            len(self.run.data.held_out),
            queries=None if in_gallery is None else int((~in_gallery).sum()),
            anchors=self.anchors(),
            hits=self.run.progress.hits,
        )
        if verdict is not None:
            self.run.progress.verdict = verdict.as_dict()
            self.run.reporter.event("verdict", f"Verdict: {verdict.message}", verdict.as_dict())

    def repeat_final_reports(self) -> None:
        """Report the final evaluation and the verdict again when a finished run is resumed.

        The earlier process may not have delivered its reports.
        """
        for record in self.run.progress.evaluations:
            if record["step"] == self.run.progress.step:
                self.run.reporter.evaluation(**record)
        verdict = self.run.progress.verdict
        if verdict is not None:
            self.run.reporter.event("verdict", f"Verdict: {verdict['message']}", verdict)

    def anchors(self) -> Anchors:
        """Return the reference values for this run's metrics, in addition to its baselines."""
        chance, rank = {}, None
        if self.evaluator is not None:
            chance, rank = self.evaluator.chance(), self._largest_rank()
        means = self.run.progress.epochs[-1] if self.run.progress.epochs else {}
        return Anchors(
            chance=chance,
            largest_rank=rank,
            loss=means.get(f"loss_{self.run.spec.method.name}"),
            chance_loss=self.method.chance_loss(self.run.length.batch_size),
        )

    def observer(self) -> Plotter | None:
        """Return the observer of the features of evaluations."""
        return self.plotter

    def publish_plots(self, certificate: str | None) -> None:
        """Publish the plots and the report of the finished run, with the certificate's SHA-256, as artifacts."""
        self.plotter.publish(self.anchors(), certificate)

    def _record(
        self, subject: Subject, metrics: dict[str, float], hits: dict[str, str] | None = None
    ) -> None:
        step, epoch = self.run.progress.step, self.run.epoch
        # The final evaluation of a run that stopped early replaces the one that stopped it.
        evaluations = self.run.progress.evaluations
        for records in (evaluations, self.run.progress.hits):
            records[:] = [e for e in records if (e["step"], e["subject"]) != (step, subject)]
        evaluations.append({"step": step, "epoch": epoch, "subject": subject, "metrics": metrics})
        if hits:
            self.run.progress.hits.append({"step": step, "subject": subject, "right": hits})
        self.run.reporter.evaluation(step, epoch, subject, metrics)
        self.metrics.report_progress()

    def _report_unmeasured(self) -> None:
        """Report the metrics that this run will not measure, and why."""
        settings = self.run.spec.evaluate
        if self.evaluator is None:
            images = len(self.run.data.index)
            fraction = 0.0 if settings.holdout is None else settings.holdout.fraction
            message = (
                f"evaluate.holdout is null, so all {images} images are trained on and only the loss is "
                "measured"
                if settings.holdout is None
                else "No image is held out, and only the loss is measured: all images are near-duplicates of the first, or "
                "those held out cannot be read. Name an evaluate.dataset."
                if round(fraction * images)
                else f"evaluate.holdout.fraction: {fraction:g} of {images} images rounds to 0, so none is "
                "held out and only the loss is measured. Increase it."
            )
            self.run.reporter.event(
                "nothing_held_out", message, {"images": images, "fraction": fraction}
            )
        elif self.evaluator.train_labels is None:
            requested = [name for name in ("linear", "finetune") if getattr(settings, name)]
            if requested:
                names = " and ".join(f"evaluate.{name}" for name in requested)
                self.run.reporter.event(
                    "classifier_not_measured",
                    f"{names} will not be measured: this needs held-out images of classes that are "
                    "trained on",
                    {"evaluations": requested},
                )
