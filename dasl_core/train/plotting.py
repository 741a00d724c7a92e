"""Plots of a run: their data is collected at each evaluation, and drawn at the end."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasl_core.data.image_set import spacing
from dasl_core.distributed import all_ranks, gather_objects_to_rank0, rank
from dasl_core.evaluate import distance_histogram, nearest_neighbors
from dasl_core.headlines import HEALTH_LIMIT
from dasl_core.plots import data as plotted
from dasl_core.plots.facts import RunFacts
from dasl_core.plots.history import BINS, GroupNorms, Histogram, History, Shown
from dasl_core.plots.images import ShownImages
from dasl_core.plots.settings import automatic_settings
from dasl_core.train.evaluation import Evaluator
from dasl_core.train.run import Run
from dasl_core.verdict import Anchors
from dasl_core.vocabulary import Subject

# Maximum number of held-out images on the map if the training images do not all fit.
HELD_OUT_ON_MAP = 2_048
# Number of images in the histogram of distances: half a million pairs.
COUNTED = 1_024


logger = logging.getLogger(__name__)


@dataclass
class Plotter:
    """Collects and publishes the data of plots at each evaluation, and draws the plots at the end.

    A `FeatureObserver`: all ranks make the same calls, and rank 0 stores the results.

    Attributes:
        evaluator: None when no images are held out; then only the curves are drawn.
        history: what the plots show, a part of the training state.
    """

    run: Run
    evaluator: Evaluator | None
    history: History = field(default_factory=History)
    # Similarities, positions, and features on the map.
    _features: tuple[Tensor, Tensor, np.ndarray] | None = None
    _embeddings: tuple[Histogram | None, Histogram, GroupNorms | None] | None = None
    _has_thumbnails: bool = False
    _failed: bool = False

    @property
    def searched_every(self) -> int:
        """Stride of the training images searched for neighbors."""
        return 1 if self.evaluator is None else self.evaluator.searched_every

    def on_map(self) -> list[int]:
        """Return the images of the map: held-out images, then those to train on."""
        held_out, train = len(self.run.data.held_out), len(self.run.data.train)
        searched = -(-train // self.searched_every)
        shown = min(held_out, max(HELD_OUT_ON_MAP, plotted.ON_MAP - searched))
        first = range(0, held_out, spacing(held_out, shown))
        stride = self._train_stride(len(first))
        return [*first, *(held_out + at for at in range(0, train, stride))]

    def _train_stride(self, held_out_shown: int) -> int:
        searched = -(-len(self.run.data.train) // self.searched_every)
        return self.searched_every * spacing(searched, plotted.ON_MAP - held_out_shown)

    def features(self, held_out: Tensor, bank: Tensor, positions: np.ndarray) -> None:
        """Compute the neighbors of the queries, and the features of the images on the map."""
        queries = torch.from_numpy(plotted.query_positions(len(held_out))).to(held_out.device)
        k = plotted.NEIGHBORS
        in_train, train_positions = nearest_neighbors(
            held_out[queries], bank, torch.from_numpy(positions), k, all_ranks()
        )
        itself = torch.arange(len(held_out))
        # One more, since each query finds itself.
        similarity, position = nearest_neighbors(held_out[queries], held_out, itself, k + 1)
        is_self = position == queries.cpu()[:, None]
        similarity = similarity.masked_fill(is_self, -torch.inf)
        similarity = torch.cat([similarity, in_train.to(similarity)], dim=1)
        position = torch.cat([position, train_positions + len(held_out)], dim=1)
        similarity, order = similarity.sort(dim=1, descending=True, stable=True)
        found = min(k, len(held_out) - 1 + len(self.run.data.train))
        found = min(found, int(similarity.isfinite().sum(dim=1).min()))
        position = position.gather(1, order)

        held_out_on_map = [image for image in self.on_map() if image < len(held_out)]
        stride = self._train_stride(len(held_out_on_map))
        mine = np.flatnonzero(positions % stride == 0)
        part = bank[torch.from_numpy(mine).to(bank.device)].cpu()
        parts = gather_objects_to_rank0(part, self.run.control)
        if parts is None:
            return
        held = held_out[torch.tensor(held_out_on_map, device=held_out.device)].cpu().numpy()
        on_map = np.concatenate([held, *(part.numpy() for part in parts if len(part))])
        self._features = (similarity[:, :found], position[:, :found], on_map)

    def embeddings(self, phi: Tensor, labels: Tensor | None) -> None:
        """Compute histograms of the norms and distances of the loss's embeddings."""
        if rank() != 0:
            return
        lengths = torch.linalg.vector_norm(phi.double(), dim=1).cpu().numpy()
        held_out = self.run.data.held_out
        grouping = held_out.every(spacing(len(held_out), HEALTH_LIMIT)).grouping()
        by_group = (
            None if grouping is None else GroupNorms.from_values(grouping[0], lengths, grouping[1])
        )
        every = spacing(len(phi), COUNTED)
        phi = phi[::every]
        y = torch.arange(len(phi)) if labels is None else labels[::every]
        distances = None
        if torch.unique(y).numel() > 1:
            counts, mean = distance_histogram(phi, y, BINS)
            distances = Histogram(0.0, 2.0, counts, mean)
        self._embeddings = (distances, Histogram.from_values(lengths), by_group)

    def record(self, step: int, epoch: float, subject: Subject) -> None:
        """Add the observations since the last call to the history, and publish the data. On all ranks."""
        features, embeddings = self._features, self._embeddings
        self._features = self._embeddings = None
        if features is None or embeddings is None:
            return
        similarity, position, on_map = features
        distances, norms, by_group = embeddings

        def add() -> None:
            coordinates, explained = plotted.principal_components(on_map)
            earlier = [shown for shown in self.history.evaluations if shown.step != step]
            if earlier:
                coordinates = plotted.aligned(coordinates, earlier[-1].map)
            neighbors, cosines = position.numpy(), similarity.numpy().astype(np.float32)
            self.history.add(
                Shown(step, epoch, subject, neighbors, cosines, coordinates, explained, distances, norms, by_group)
            )  # fmt: skip
            self._publish_data()

        self._publishing(add)

    def publish(self, anchors: Anchors, certificate: str | None) -> None:
        """Draw and publish the plots and the report, with the certificate's SHA-256, on rank 0; report a full disk."""
        if rank() == 0:
            self._publishing(lambda: self._publish_pictures(anchors, certificate))

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the history, for the training state."""
        return self.history.state_dict()

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Restore a `state_dict` if it belongs to the same images."""
        self.history.load_state_dict(state)
        if self.evaluator is None or any(
            len(shown.map) != len(self.on_map()) for shown in self.history.evaluations
        ):
            self.history = History()

    def _publishing(self, publish: Callable[[], None]) -> None:
        """Publish, and report a failure once, because no plot may end a run."""
        try:
            publish()
        except Exception as error:
            logger.warning("the plots could not be written", exc_info=True)
            if not self._failed:
                message = f"The plots could not be written: {error}"
                self.run.reporter.event(
                    "pictures_missing", message, {"step": self.run.progress.step}
                )
            self._failed = True

    def facts(self, anchors: Anchors) -> RunFacts:
        """Return what the titles of plots say."""
        data, progress = self.run.data, self.run.progress
        index, verdict = data.held_out.index, progress.verdict
        return RunFacts(
            spec=self.run.spec,
            day=date.today(),
            images=len(data.index),
            train_images=len(data.train),
            held_out=len(data.held_out),
            searched=-(-len(data.train) // self.searched_every),
            classes=None if index.labels is None else len(index.class_names),
            anchors=anchors,
            evaluations=progress.evaluations,
            losses=[math.nan if loss is None else loss for loss in progress.losses],
            epochs=progress.drawn_epochs(),
            verdict=None if verdict is None else str(verdict["message"]),
            steps_per_epoch=self.run.length.steps_per_epoch,
        )

    @property
    def _images(self) -> ShownImages:
        return ShownImages(self.run.data.held_out, self.run.data.train)

    def _publish_data(self) -> None:
        facts = self.facts(Anchors())
        content, sheet = plotted.neighbors_data(self.history, self._images, facts)
        self._write("neighbours.json", _json(content))
        self._write(plotted.NEIGHBORS_SHEET, sheet)
        self._write("map.json", _json(plotted.map_data(self.history)))
        self._write(
            "histograms.json",
            _json(plotted.histograms_data(self.history, facts.classes is not None)),
        )
        if not self._has_thumbnails:
            index, sheet = plotted.thumbnails(self._images, self.on_map())
            self._write(plotted.THUMBNAILS_INDEX, _json(index))
            self._write(plotted.THUMBNAILS, sheet)
            self._has_thumbnails = True

    def _publish_pictures(self, anchors: Anchors, certificate: str | None) -> None:
        # Imported late: Matplotlib would delay the first step of every rank, and needs a writable folder.
        from dasl_core.plots.curves import curves
        from dasl_core.plots.histograms import distances, norms, norms_by_group
        from dasl_core.plots.maps import feature_map
        from dasl_core.plots.neighbors import neighbors
        from dasl_core.plots.report import write_report
        from dasl_core.plots.style import to_svg, write_png

        scratch = self.run.files.scratch
        automatic = frozenset(automatic_settings(self.run.spec, self.run.data.index.facts()))
        facts = replace(self.facts(anchors), automatic=automatic, certificate=certificate)
        history, images = self.history, self._images
        plots = {"curves": partial(curves, facts)}
        if history.evaluations:
            if not self._has_thumbnails:  # after a resume, the files may be missing
                self._publish_data()
            if history.evaluations[-1].neighbors.size:
                plots["neighbours"] = partial(neighbors, history, images, facts)
            plots["map"] = partial(feature_map, history, images, self.on_map(), facts)
            plots["distances"] = partial(distances, history, facts)
            plots["norms"] = partial(norms, history, facts)
            if history.evaluations[-1].by_group is not None:
                plots["norms_by_group"] = partial(norms_by_group, history, facts)
        drawn = {name: write_png(draw, scratch / f"{name}.png") for name, draw in plots.items()}
        for name in drawn:
            self.run.reporter.artifact(scratch / f"{name}.png")
        svgs = {
            name: to_svg(figure, name) for name, figure in drawn.items() if name != "neighbours"
        }
        report = scratch / "report.html"
        write_report(facts, svgs, history, images, report)
        self.run.reporter.artifact(report)

    def _write(self, name: str, content: bytes) -> None:
        path = self.run.files.scratch / name
        path.write_bytes(content)
        self.run.reporter.artifact(path)


def _json(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
