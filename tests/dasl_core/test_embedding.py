"""Embeddings by a finished backbone: the features of training's evaluations, in files that others read."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import tifffile
import torch
from PIL import Image
from safetensors.numpy import load_file
from torch import Tensor, nn

from dasl_core.data.canvases import Canvases
from dasl_core.data.image_set import ImageSet
from dasl_core.data.index import DatasetIndex
from dasl_core.embedding import (
    FeatureBatch,
    ImagesWithFeatures,
    NeighborIndex,
    QueryEncoder,
    evaluate_backbone,
    files,
    load_backbone,
    read_parts,
    write_parts,
)
from dasl_core.export.card import _values
from dasl_core.export.network import preprocessing
from dasl_core.spec import Evaluate, ResolvedJobSpec, SpecError
from dasl_core.spec.finished import images_problem, resolve_evaluation
from dasl_core.standalone.embed import embed
from dasl_core.train.evaluation import Evaluator
from dasl_core.train.features import ImageEncoder, eval_mode
from dasl_core.vocabulary import EmbeddingFormat
from tests.support.checkpoint_folder import write_checkpoint
from tests.support.training_world import image_folder, ingest

CPU = torch.device("cpu")
VIT = {"backbone": {"name": "test_vit", "image_size": 32, "stem": "standard"}}


def deep_images(root: Path) -> Path:
    """Write gray images of 16 bits."""
    random, root = np.random.default_rng(1), root / "deep"
    root.mkdir()
    for number in range(12):
        pixels = random.integers(20_000, 40_000, (30, 40), dtype=np.uint16)
        Image.fromarray(pixels).save(root / f"{number:02}.png")
    return root


def transparent_images(root: Path) -> Path:
    """Write images with an alpha channel."""
    random, root = np.random.default_rng(1), root / "transparent"
    root.mkdir()
    for number in range(12):
        pixels = random.integers(0, 256, (30, 40, 4), dtype=np.uint8)
        Image.fromarray(pixels, "RGBA").save(root / f"{number:02}.png")
    return root


def training_features(
    spec: ResolvedJobSpec, network: nn.Module, index: DatasetIndex, cache: Path | None = None
) -> Tensor:
    """Compute features as an evaluation of a training does."""
    canvases = Canvases(
        index,
        spec.backbone.image_size,
        spec.backbone.in_channels,
        cache=cache,
        threads=1,
        form=spec.train.image_cache,
    )
    images = ImageSet(canvases, np.arange(len(index)))
    with eval_mode(network):
        features = ImageEncoder(spec, CPU).features(network, images)
    canvases.close()
    return features


@pytest.mark.parametrize(
    ("folder", "spec"),
    [
        (lambda root: image_folder(root / "p", per_class=100), {}),
        (lambda root: image_folder(root / "p"), VIT),
        (lambda root: image_folder(root / "p"), {"train": {"precision": "bf16"}}),
        (lambda root: image_folder(root / "p"), {"train": {"precision": "fp64"}}),
        (lambda root: image_folder(root / "p"), {"train": {"image_cache": "jpeg"}}),
        (lambda root: image_folder(root / "p"), {"evaluate": {"crop_pct": 0.5}}),
        (deep_images, {"backbone": {"name": "test_resnet", "window": [15_000, 45_000]}}),
        (transparent_images, {}),
    ],
)
@pytest.mark.parametrize("cached", [True, False])
def test_features_are_those_of_training(
    tmp_path: Path, folder: Any, spec: dict[str, Any], cached: bool
) -> None:
    index = ingest(folder(tmp_path))
    settings, network = write_checkpoint(index, tmp_path / "checkpoint", **spec)
    images = ImagesWithFeatures(
        load_backbone(tmp_path / "checkpoint", CPU),
        index,
        cache=tmp_path / "cache" if cached else None,
        threads=2,
    )
    batches = list(images.batches())
    images.close()
    embedded = np.concatenate([batch.features for batch in batches])
    # Bit by bit, if decoding, batches and precision are the same.
    assert torch.equal(torch.from_numpy(embedded), training_features(settings, network, index))
    assert [key for batch in batches for key in batch.keys] == list(index.paths)


def test_values_of_8_bits_are_read_as_in_training(tmp_path: Path) -> None:
    """One image of 16 bits made a data set of photos unusable on others: these were read without the factor 257."""
    photos = image_folder(tmp_path / "photos")
    shutil.copytree(photos, tmp_path / "mixed")
    values = np.random.default_rng(0).integers(0, 2**16, (40, 40, 3), np.uint16)
    tifffile.imwrite(tmp_path / "mixed" / "deep.tif", values)
    mixed, eight = ingest(tmp_path / "mixed"), ingest(photos)
    assert (mixed.pixels.dtype, eight.pixels.dtype) == ("uint16", "uint8")
    settings, _ = write_checkpoint(mixed, tmp_path / "checkpoint")
    assert images_problem("eight", eight.facts(), mixed.facts(), settings.backbone) is None
    found = []
    for index in (mixed, eight):
        backbone = load_backbone(tmp_path / "checkpoint", CPU)
        images = ImagesWithFeatures(backbone, index, cache=tmp_path / "cache", threads=1)
        batches = [*images.batches()]
        images.close()
        features = (dict(zip(batch.keys, batch.features, strict=True)) for batch in batches)
        found.append({key: values for each in features for key, values in each.items()})
    for key, values in found[1].items():
        np.testing.assert_allclose(values, found[0][key], atol=1e-6)
    described = preprocessing(settings)
    assert (described["type"], described["window"]) == ("uint16", list(settings.backbone.window))
    assert "For a file of 8 bits x is its values times 257" in _values(described)


def test_tokens_of_a_transformer(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "p"))
    settings, _ = write_checkpoint(index, tmp_path / "checkpoint", **VIT)
    backbone = load_backbone(tmp_path / "checkpoint", CPU)
    images = ImagesWithFeatures(backbone, index, cache=None, threads=1)
    [cls], [patches], [pooled] = (
        [batch.features for batch in images.batches(kind)] for kind in ("cls", "patch", "pooled")
    )
    images.close()
    width = settings.backbone.info.features
    assert cls.shape == (len(index), width)
    count = (32 // settings.backbone.info.patch_size) ** 2  # type: ignore[operator]
    assert patches.shape == (len(index), count, width)
    # timm pools by the class token.
    np.testing.assert_array_equal(cls, pooled)
    assert not np.allclose(patches[:, 0], cls)


def test_features_that_a_network_lacks_are_refused(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "p"))
    write_checkpoint(index, tmp_path / "checkpoint")
    backbone = load_backbone(tmp_path / "checkpoint", CPU)
    for kind in ("cls", "patch"):
        with pytest.raises(SpecError, match=r"features: test_resnet has no .*\(given .*pooled\)"):
            backbone.encode(kind)


@pytest.mark.parametrize("labeled", [True, False])
@pytest.mark.parametrize("format", ["parquet", "safetensors"])
def test_files_are_read_back_by_others(
    tmp_path: Path, format: EmbeddingFormat, labeled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    batches = [
        FeatureBatch(
            [f"{number}/{row}.png" for row in range(4)],
            [f"class {row}" for row in range(4)] if labeled else None,
            random.normal(size=(4, 2, 3)).astype(np.float16),
        )
        for number in range(5)
    ]
    per_batch = batches[0].features.nbytes
    monkeypatch.setitem(files.PART_BYTES, format, 3 * per_batch)
    monkeypatch.setattr(files, "GROUP_BYTES", 2 * per_batch)
    written = list(write_parts(batches, tmp_path, format))
    assert [file.name for file in written] == [
        f"embedding-0000{number}.{format}" for number in range(2)
    ]
    keys = [key for batch in batches[:3] for key in batch.keys]
    features = np.concatenate([batch.features for batch in batches[:3]])
    labels: list[str | None] = [None] * 12
    if labeled:
        labels = [label for batch in batches[:3] for label in batch.labels or ()]
    if format == "parquet":
        table = pyarrow.parquet.read_table(written[0])
        assert pyarrow.parquet.ParquetFile(written[0]).num_row_groups == 2
        assert table["key"].to_pylist() == keys
        assert table["label"].to_pylist() == labels
        values = np.array(table["features"].to_pylist(), np.float16)
        np.testing.assert_array_equal(values.reshape(12, 2, 3), features)
        assert json.loads(table.schema.field("features").metadata[b"shape"]) == [2, 3]
    else:
        np.testing.assert_array_equal(load_file(written[0])["features"], features)
    read = list(read_parts(written))
    assert [key for batch in read for key in batch.keys] == [
        key for batch in batches for key in batch.keys
    ]
    assert all((batch.labels is not None) == labeled for batch in read)
    joined = np.concatenate([batch.features for batch in read])
    np.testing.assert_array_equal(joined, np.concatenate([each.features for each in batches]))


def test_image_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "p")
    index = ingest(root)
    settings, network = write_checkpoint(index, tmp_path / "checkpoint")
    expected = training_features(settings, network, index)
    (root / index.paths[1]).write_bytes(b"no image")
    for cache in (tmp_path / "cache", None):
        images = ImagesWithFeatures(
            load_backbone(tmp_path / "checkpoint", CPU), index, cache=cache, threads=1
        )
        [batch] = images.batches()
        assert [*images.unreadable] == [1]
        assert batch.keys == [path for at, path in enumerate(index.paths) if at != 1]
        kept = np.delete(expected.numpy(), 1, axis=0)
        np.testing.assert_allclose(batch.features, kept, atol=1e-6)
        images.close()


def test_neighbors_are_exact_and_equal_ones_stay_in_order(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(500, 8)).astype(np.float32)
    vectors[[40, 300, 450]] = vectors[10] * np.array([[2], [1], [0.5]], np.float32)
    batches = [
        FeatureBatch(
            [str(row) for row in range(start, start + 100)], None, vectors[start : start + 100]
        )
        for start in range(0, 500, 100)
    ]
    index = NeighborIndex(batches, tmp_path / "vectors")
    position = index.position("10")
    assert position == 10
    found = index.nearest(torch.from_numpy(vectors[10]), 20, without=position)
    assert [each.key for each in found[:3]] == ["40", "300", "450"]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ unit[10]
    order = [row for row in np.argsort(-similarity, kind="stable") if row != 10]
    assert {int(each.key) for each in found} == set(order[:20])
    np.testing.assert_allclose(
        [each.similarity for each in found],
        similarity[[int(each.key) for each in found]],
        atol=1e-6,
    )
    assert len(index.nearest(torch.from_numpy(vectors[10]), 1000, without=position)) == 499
    with pytest.raises(ValueError, match="one vector for each image"):
        NeighborIndex([FeatureBatch(["a"], None, vectors[None])], tmp_path / "patches")


def test_neighbors_do_not_depend_on_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.eye(16, dtype=np.float32)[np.arange(64) % 16]
    index = NeighborIndex(
        [FeatureBatch([str(row) for row in range(64)], None, vectors)], tmp_path / "vectors"
    )
    keys = [each.key for each in index.nearest(torch.from_numpy(vectors[3]), 10)]
    monkeypatch.setattr("dasl_core.embedding.neighbors.TILE_ENTRIES", 16 * 5)
    assert [each.key for each in index.nearest(torch.from_numpy(vectors[3]), 10)] == keys
    assert keys[:5] == ["3", "19", "35", "51", "0"]


@pytest.mark.parametrize(
    ("folder", "spec"),
    [
        (lambda root: image_folder(root / "p", size=(90, 70)), {}),
        (deep_images, {"backbone": {"name": "test_resnet", "window": [15_000, 45_000]}}),
        (transparent_images, {}),
    ],
)
def test_image_file_has_the_features_of_its_data_set(
    tmp_path: Path, folder: Any, spec: dict[str, Any]
) -> None:
    root = folder(tmp_path)
    index = ingest(root)
    settings, network = write_checkpoint(index, tmp_path / "checkpoint", **spec)
    expected = training_features(settings, network, index)
    query = QueryEncoder(load_backbone(tmp_path / "checkpoint", CPU), index.facts(), "pooled")
    for position in (0, len(index) - 1):
        features = query.embed((root / index.paths[position]).read_bytes())
        torch.testing.assert_close(features, expected[position], atol=1e-5, rtol=1e-4)
    whole = (root / index.paths[0]).read_bytes()
    for content in (b"", b"no image", whole[: len(whole) // 2]):
        with pytest.raises(ValueError, match=r"empty|known format|truncated") as refused:
            query.embed(content)
        assert tempfile.gettempdir() not in str(refused.value)


def test_image_of_other_bands_is_refused(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "p"))
    write_checkpoint(index, tmp_path / "checkpoint")
    query = QueryEncoder(load_backbone(tmp_path / "checkpoint", CPU), index.facts(), "pooled")
    np.save(tmp_path / "bands.npy", np.zeros((20, 20, 5), np.uint8))
    with pytest.raises(ValueError, match="it has images of 5 bands"):
        query.embed((tmp_path / "bands.npy").read_bytes())


def test_evaluation_is_that_of_training(tmp_path: Path) -> None:
    index = ingest(image_folder(tmp_path / "p"))
    settings, network = write_checkpoint(index, tmp_path / "checkpoint")
    asked = Evaluate.model_validate(
        {"holdout": {"fraction": 0.3}, "retrieval": [1], "linear": True}
    )
    evaluate = resolve_evaluation(asked, settings, index.facts())
    measured = evaluate_backbone(
        load_backbone(tmp_path / "checkpoint", CPU),
        index,
        "pictures",
        evaluate,
        cache=None,
        threads=1,
    )
    from dasl_core.data.split import split

    canvases = Canvases(index, 16, 3, cache=None, threads=1)
    parts = split(index, asked.holdout)
    evaluator = Evaluator(
        evaluate,
        ImageEncoder(settings, CPU),
        ImageSet(canvases, parts.train),
        ImageSet(canvases, parts.held_out),
    )
    assert measured.metrics == {
        "raw": evaluator.raw_pixels(),
        "backbone": evaluator.backbone(network, final=True),
    }
    assert measured.images == len(parts.held_out)
    canvases.close()
    assert "linear_top1" in measured.metrics["backbone"]
    # Without images to learn from, all are compared with one another.
    every = resolve_evaluation(Evaluate(holdout=None), settings, index.facts())
    backbone = load_backbone(tmp_path / "checkpoint", CPU)
    measured = evaluate_backbone(backbone, index, "pictures", every, cache=None, threads=1)
    assert "recall_at_1" in measured.metrics["backbone"]
    assert "knn_top1" not in measured.metrics["backbone"]
    assert measured.images == len(index)
    # Without labels, views are searched among the raw pixels, too, as in training.
    unlabeled = replace(index, labels=None, class_names=[])
    every = resolve_evaluation(Evaluate(holdout=None), settings, unlabeled.facts())
    measured = evaluate_backbone(backbone, unlabeled, "pictures", every, cache=None, threads=1)
    assert measured.metrics["raw"].keys() == {"instance_recall_at_1"}


def test_folder_is_embedded_without_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    root = image_folder(tmp_path / "p")
    index = ingest(root)
    settings, network = write_checkpoint(index, tmp_path / "checkpoint")
    output = tmp_path / "out" / "vectors.parquet"
    result = embed(tmp_path / "checkpoint", str(root), output, "parquet")
    assert isinstance(result, dict)
    assert (result["images"], result["shape"]) == (len(index), [settings.backbone.info.features])
    assert [*output.parent.iterdir()] == [output]
    [batch] = read_parts([output])
    expected = training_features(settings, network, index).numpy()
    np.testing.assert_array_equal(batch.features, expected)
    output = tmp_path / "another.parquet"
    problem = embed(tmp_path / "checkpoint", str(root), output, "parquet", features="patch")
    assert (
        problem == "features: test_resnet has no tokens of patches (given patch; expected pooled)"
    )
    assert "not the folder of a downloaded checkpoint" in str(
        embed(tmp_path / "nowhere", str(root), output, "parquet")
    )
    assert "is not the folder of a checkpoint" in str(embed(root, str(root), output, "parquet"))
