"""Held-out images: the same in every run, whole classes if requested, nested by fraction."""

import hashlib
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasl_core.data import strings
from dasl_core.data.canvases import Canvases
from dasl_core.data.groups import group_names
from dasl_core.data.index import DatasetIndex
from dasl_core.data.sources import SourceRecord
from dasl_core.data.split import holdout_events, labeled, split
from dasl_core.data.strings import Strings
from dasl_core.spec import GroupRule, Holdout
from dasl_core.spec.source import SourceOptions
from dasl_core.train.data import TrainingData
from tests.support.training_world import image_folder, ingest, recorded, resolved

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


@given(st.lists(st.integers(0, 5), min_size=2, max_size=120), FRACTIONS, FRACTIONS)
def test_share_of_the_labels_is_balanced_fixed_and_nested(
    labels: list[int], one: float, other: float
) -> None:
    index = index_of(labels)
    images = split(index, None).train
    small, large = (labeled(index, images, share) for share in sorted((one, other)))
    assert set(small) <= set(large)
    assert small.tolist() == labeled(index, images, min(one, other)).tolist() == sorted(set(small))
    available = np.bincount(labels)[np.unique(labels)]
    chosen = np.bincount(np.array(labels)[small], minlength=6)[np.unique(labels)]
    each = max(chosen)
    assert chosen.tolist() == np.minimum(available, each).tolist()
    assert len(small) >= 2
    classes = len(available)
    assert each <= max(1, 2 / classes, min(one, other) * len(labels) / classes + 0.5)


def test_split_depends_on_names_not_order() -> None:
    whole = index_of(None, 100)
    names = {whole.paths[i] for i in split(whole, Holdout(fraction=0.3)).held_out}
    turned = replace(
        whole, source=SourceRecord("folder", "elsewhere", "elsewhere"), paths=whole.paths[::-1]
    )
    assert {turned.paths[i] for i in split(turned, Holdout(fraction=0.3)).held_out} == names
    # Fixed values: another hash would hold out other images than an earlier version did.
    few = split(index_of(None, 20), Holdout(fraction=0.2)).held_out
    assert few.tolist() == [3, 6, 12, 16]


@given(st.lists(st.integers(0, 12), min_size=2, max_size=80), FRACTIONS, FRACTIONS, st.booleans())
def test_groups_are_held_out_whole_in_any_order_and_nested(
    groups: list[int], one: float, other: float, named: bool
) -> None:
    """Near-duplicates, or groups with names."""
    count = len(groups)
    first = np.array([groups.index(group) for group in groups], np.int32)
    index = replace(index_of(None, count), duplicate_of=first)
    if named:
        index = replace(
            index, duplicate_of=None, paths=[f"{g}/{n:03}" for n, g in enumerate(groups)]
        )
        if len({*groups}) < 2:
            return
    rule: Any = {"by": "group", "group": {"folder": 1}} if named else {}
    small, large = (
        split(index, Holdout(fraction=fraction, **rule)) for fraction in sorted((one, other))
    )
    assert {*small.held_out.tolist()} <= {*large.held_out.tolist()}
    for parts, fraction in ((small, min(one, other)), (large, max(one, other))):
        held_out, trained = ({groups[i] for i in part} for part in (parts.held_out, parts.train))
        assert held_out.isdisjoint(trained)
        is_all_but_one = len(trained) == 1
        assert len(parts.held_out) >= round(fraction * count) or is_all_but_one
        assert parts.straddling == 0
    order = np.random.default_rng(count).permutation(count)
    moved = np.argsort(order)[first[order]].astype(np.int32)
    paths = [index.paths[i] for i in order]
    turned = replace(index, paths=paths, duplicate_of=None if named else moved)
    again = split(turned, Holdout(fraction=one, **rule))
    before = small if one <= other else large
    assert {paths[i] for i in again.held_out} == {index.paths[i] for i in before.held_out}


def test_large_group_is_not_the_holdout() -> None:
    for number in range(20):
        index = index_of(None, 100)
        # 60 images of one group, at another place among the names each time.
        first = np.arange(100, dtype=np.int32)
        first[number : number + 60] = number
        parts = split(replace(index, duplicate_of=first), Holdout(fraction=0.1))
        assert len(parts.held_out) == 10


def test_split_counts_what_near_duplicates_change() -> None:
    index = index_of([0, 0, 1, 1, 2, 2, 2, 2])
    first = np.array([0, 1, 2, 1, 4, 5, 6, 4], np.int32)
    joined = replace(index, duplicate_of=first, duplicates={"similar": {"unchecked": 2}})
    own, parts = (split(each, Holdout(fraction=0.25)) for each in (index, joined))
    changed = {*own.held_out.tolist()} ^ {*parts.held_out.tolist()}
    assert (parts.duplicates, parts.moved, parts.straddling) == (4, len(changed), 0)
    ((kind, message, data),) = holdout_events("birds", joined, Holdout(), parts)
    assert (kind, data["moved"], data["unchecked"]) == ("near_duplicates_kept", len(changed), 2)
    assert "4 of the 8 images of birds have near-duplicates" in message
    by_class = Holdout(fraction=0.34, by="class")
    parts = split(joined, by_class)
    classes = {index.class_names[0], index.class_names[1]}
    held_out = {index.class_names[index.labels[i]] for i in parts.held_out}  # type: ignore[index]
    assert parts.straddling == (1 if len(held_out & classes) == 1 else 0)
    assert [kind for kind, *_ in holdout_events("birds", joined, by_class, parts)] == (
        ["near_duplicates_split"] if parts.straddling else []
    )


def grouped(rule: dict[str, Any], paths: list[str], **changes: Any) -> list[str]:
    index = replace(index_of(None, len(paths)), paths=paths, **changes)
    return group_names(index, GroupRule(**rule))


def test_groups_are_named_by_folder_pattern_and_column() -> None:
    paths = ["a/p1/x.png", "a/p1/y.png", "a/p2_1.png", "z.png"]
    assert grouped({"folder": 1}, paths) == ["a", "a", "a", "\0z.png"]
    assert grouped({"folder": 2}, paths) == ["a/p1", "a/p1", "a", "\0z.png"]
    assert grouped({"pattern": r"/p(\d+)"}, paths) == ["1", "1", "2", "\0z.png"]
    options = SourceOptions(group_column="patient")
    source = SourceRecord("list", "l.csv", "/", ("l.csv",), options)
    values = Strings.pack(["ann", "", "ann", "bob"])
    names = grouped({"column": "patient"}, paths, source=source, groups=values)
    assert names == ["ann", "\0a/p1/y.png", "ann", "bob"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"folder": 1}, r"^evaluate\.holdout\.group: the first folder puts all 2 images into one"),
        ({"pattern": r"z(\d)"}, r"^evaluate\.holdout\.group: the pattern .* none of the 2 images"),
        ({"pattern": r"(\.png)"}, r"^evaluate\.holdout\.group: .* into one group, '\.png'"),
        ({"column": "plate"}, r"^evaluate\.holdout\.group\.column: .* without the column 'plate'"),
    ],
)
def test_rule_without_two_groups_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grouped(rule, ["a/1.png", "a/2.png"])


@pytest.mark.usefixtures("without_plots")
def test_run_reports_its_groups_and_near_duplicates(tmp_path: Path) -> None:
    pictures = image_folder(tmp_path / "pictures", classes=4, per_class=3)
    for label in (1, 2, 3):
        copyfile(pictures / "class-0" / "00.png", pictures / f"class-{label}" / "copy.png")
    index = ingest(pictures)
    holdout = {"fraction": 0.4, "by": "group", "group": {"folder": 1}}
    spec = resolved(index, train={"batch_size": 2, "epochs": 1}, evaluate={"holdout": holdout})
    reporter = recorded(spec, index, tmp_path / "cache", tmp_path / "out")
    groups, copies = reporter.events[:2]
    assert groups[0] == "groups_held_out"
    assert groups[2] == {"dataset": "pictures", "groups": 4, "held_out": 2}
    assert (copies[0], copies[2]["straddling"]) == ("near_duplicates_split", 2)
    card = (reporter.checkpoints[-1][1] / "README.md").read_text()
    assert "| 0.4 of the images, in whole groups by the first folder |" in card


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
def test_evaluation_images_of_other_classes_are_reported(
    pictures: DatasetIndex, cache: Path
) -> None:
    names = ["Möwe", *pictures.class_names[1:]]
    other = replace(pictures, class_names=names)
    sets = {
        name: Canvases(index, 16, 3, cache=cache, threads=1)
        for name, index in (("pictures", pictures), ("others", other))
    }
    spec = resolved(pictures, evaluate={"dataset": "others"})
    data = TrainingData.select(spec, sets, control=None)
    count = int((np.asarray(other.labels) == 0).sum())
    message = (
        f"{count} of {len(other)} evaluation images are of classes without training images: Möwe"
    )
    assert data.events == [("classes_unmatched", message, {"dataset": "others"})]
    data.close()


@pytest.mark.usefixtures("without_plots")
def test_run_without_held_out_images_reports_it(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=0, per_class=3))
    spec = resolved(index, train={"batch_size": 2})
    reporter = recorded(spec, index, tmp_path / "cache", tmp_path / "out")
    ((kind, message, data),) = reporter.events
    assert (kind, data) == ("nothing_held_out", {"images": 3, "fraction": 0.1})
    assert "evaluate.holdout.fraction: 0.1 of 3 images rounds to 0" in message
    assert reporter.evaluations == []


@pytest.mark.usefixtures("without_plots")
def test_run_without_holdout_trains_on_all_images(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=2, per_class=3))
    spec = resolved(index, train={"batch_size": 2, "epochs": 2}, evaluate={"holdout": None})
    reporter = recorded(spec, index, tmp_path / "cache", tmp_path / "out")
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
        spec = resolved(index, evaluate=evaluate, train={"batch_size": 4, "epochs": 1})
        reporter = recorded(spec, index, tmp_path / "cache", tmp_path / str(number))
        events = [event for event in reporter.events if event[0] == "classifier_not_measured"]
        assert [data["evaluations"] for _, _, data in events] == expected
        assert all("evaluate.linear" in message for _, message, _ in events)
