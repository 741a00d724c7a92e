"""Held-out images: the same in every run, whole classes if requested, nested by fraction."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasl_core.data import strings
from dasl_core.data.index import DatasetIndex
from dasl_core.data.sources import SourceRecord
from dasl_core.data.split import split
from dasl_core.data.strings import Strings
from dasl_core.spec import Holdout
from dasl_core.train.data import TrainingData
from tests.support.training_world import Recorder, image_folder, ingest, resolved, run

FRACTIONS = st.floats(0.01, 0.99)


def index_of(labels: list[int] | None, count: int | None = None) -> DatasetIndex:
    count = len(labels) if labels is not None else count or 0
    classes = max(labels) + 1 if labels else 0
    return DatasetIndex(
        source=SourceRecord("folder", "pictures", "pictures"),
        paths=[f"{number:04d}.png" for number in range(count)],
        labels=None if labels is None else np.array(labels, np.int32),
        class_names=[f"class {number}" for number in range(classes)],
        sizes=np.full((count, 2), 8, dtype=np.int32),
        locations=np.zeros((count, 4), np.int64),
        skipped=[],
        checksums=np.zeros(count, np.int32),
    )


@given(st.integers(0, 300), FRACTIONS)
def test_split_is_a_partition(count: int, fraction: float) -> None:
    parts = split(index_of(None, count), Holdout(fraction=fraction))
    everything = np.concatenate([parts.train, parts.held_out])
    assert sorted(everything.tolist()) == list(range(count))
    assert len(parts.held_out) == round(count * fraction)
    for positions in (parts.train, parts.held_out):
        assert positions.dtype == np.int64
        assert (np.diff(positions) > 0).all()


@given(st.integers(1, 200), FRACTIONS, FRACTIONS)
def test_larger_fraction_contains_smaller(count: int, one: float, other: float) -> None:
    index = index_of(None, count)
    small, large = (
        set(split(index, Holdout(fraction=f)).held_out.tolist()) for f in sorted((one, other))
    )
    assert small <= large


@given(st.lists(st.integers(0, 9), min_size=2, max_size=100), FRACTIONS)
def test_split_by_class_holds_out_whole_classes(labels: list[int], fraction: float) -> None:
    index = index_of(labels)
    if len(index.class_names) < 2:
        return
    parts = split(index, Holdout(fraction=fraction, by="class"))
    trained = {labels[i] for i in parts.train}
    held_out = {labels[i] for i in parts.held_out}
    assert trained.isdisjoint(held_out)
    assert len(parts.train) + len(parts.held_out) == len(labels)


def test_split_depends_on_names_not_order() -> None:
    whole = index_of(None, 100)
    names = {whole.paths[i] for i in split(whole, Holdout(fraction=0.3)).held_out}
    turned = DatasetIndex(
        source=SourceRecord("folder", "elsewhere", "elsewhere"),
        paths=whole.paths[::-1],
        labels=None,
        class_names=[],
        sizes=whole.sizes,
        locations=whole.locations,
        skipped=[],
        checksums=whole.checksums,
    )
    assert {turned.paths[i] for i in split(turned, Holdout(fraction=0.3)).held_out} == names
    # Fixed values: another hash would hold out other images than an earlier version did.
    few = split(index_of(None, 20), Holdout(fraction=0.2)).held_out
    assert few.tolist() == [3, 6, 12, 16]


@settings(max_examples=25)
@given(st.lists(st.text(max_size=9), max_size=40), st.integers(1, 7))
def test_split_and_digest_hash_names_in_chunks_as_one_by_one(names: list[str], chunk: int) -> None:
    index = index_of(None, len(names))
    index = replace(index, paths=Strings.pack(names))
    encoded = [name.encode() for name in names]
    hashes = [hashlib.blake2b(name, digest_size=8).digest() for name in encoded]
    order = sorted(range(len(names)), key=lambda each: hashes[each])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "_CHUNK", chunk)
        # A million names one by one would take seconds.
        patch.delattr(Strings, "encoded")
        parts = split(index, Holdout(fraction=0.3))
        assert parts.held_out.tolist() == sorted(order[: round(0.3 * len(names))])
        data: Any = SimpleNamespace(index=index, train=SimpleNamespace(indices=parts.train))
        digest = TrainingData.digest(data)
    content = b"\0".join(encoded[position] for position in parts.train)
    content += index.sizes[parts.train].astype("<i4").tobytes()
    assert digest == hashlib.blake2b(content, digest_size=16).hexdigest()


def test_split_by_class_needs_classes() -> None:
    with pytest.raises(ValueError, match=r"evaluate\.holdout\.by is 'class'"):
        split(index_of(None, 10), Holdout(by="class"))
    with pytest.raises(ValueError, match="no classes"):
        split(index_of([0, 0, 0]), Holdout(by="class"))


@pytest.mark.usefixtures("without_plots")
def test_run_without_held_out_images_reports_it(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=0, per_class=3))
    reporter = Recorder(tmp_path / "out")
    run(resolved(index, train={"batch_size": 2}), index, tmp_path / "cache", reporter)
    ((kind, message, data),) = reporter.events
    assert (kind, data) == ("nothing_held_out", {"images": 3, "fraction": 0.1})
    assert "evaluate.holdout.fraction: 0.1 of 3 images rounds to 0" in message
    assert reporter.evaluations == []


@pytest.mark.usefixtures("without_plots")
def test_run_without_holdout_trains_on_all_images(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=2, per_class=3))
    reporter = Recorder(tmp_path / "out")
    spec = resolved(index, train={"batch_size": 2, "epochs": 2}, evaluate={"holdout": None})
    run(spec, index, tmp_path / "cache", reporter)
    assert len(reporter.points) == 6, "two epochs of all six images"
    ((kind, message, data),) = reporter.events
    assert (kind, data) == ("nothing_held_out", {"images": 6, "fraction": 0.0})
    assert "evaluate.holdout is null, so all 6 images are trained on" in message
    assert reporter.evaluations == []
    card = (reporter.checkpoints[-1][1] / "README.md").read_text()
    assert "| held out, never trained on | none |" in card
    assert "| trained on | 6 images |" in card


@pytest.mark.usefixtures("without_plots")
def test_probe_without_shared_classes_is_reported(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=4, per_class=4))
    by_class = {"holdout": {"fraction": 0.5, "by": "class"}, "linear": True, "finetune": True}
    for number, (evaluate, expected) in enumerate(
        (
            (by_class, [["linear", "finetune"]]),
            (by_class | {"finetune": False}, [["linear"]]),
            (by_class | {"linear": False, "finetune": False}, []),
        )
    ):
        reporter = Recorder(tmp_path / str(number))
        spec = resolved(index, evaluate=evaluate, train={"batch_size": 4, "epochs": 1})
        run(spec, index, tmp_path / "cache", reporter)
        events = [event for event in reporter.events if event[0] == "classifier_not_measured"]
        assert [data["evaluations"] for _, _, data in events] == expected
        assert all("evaluate.linear" in message for _, message, _ in events)
