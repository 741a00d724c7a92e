"""Near-duplicates: joined to the first image of their group only, and kept on one side of the holdout."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dasl_core.data import duplicates
from dasl_core.data.duplicates import (
    MAX_BITS,
    MAX_BLOCK,
    MAX_MEAN,
    find_duplicates,
    first_similar,
    groups_of,
    hash_of,
)
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.split import split
from dasl_core.evaluate import knn_accuracy
from dasl_core.spec import Holdout

RAMP = np.broadcast_to(np.linspace(0, 150, 32)[None, :, None], (32, 32, 3))


def are_alike(one: np.ndarray, other: np.ndarray, span: float) -> bool:
    """Return the rule, written in another way."""
    color = one.astype(np.float64) - other
    light = color @ [0.299, 0.587, 0.114]
    blocks = [light[y : y + 4, x : x + 4].mean() for y in range(0, 32, 4) for x in range(0, 32, 4)]
    blocks += [
        color[y : y + 8, x : x + 8, band].mean()
        for y in range(0, 32, 8)
        for x in range(0, 32, 8)
        for band in range(3)
    ]
    return (
        (hash_of(one) ^ hash_of(other)).bit_count() <= MAX_BITS
        and max(map(abs, blocks)) <= MAX_BLOCK * span
        and float(np.abs(light).mean()) <= MAX_MEAN * span
    )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 0.15), st.integers(0, 9)), max_size=14),
    st.sampled_from([("uint8", 255.0), ("uint16", 4000.0), ("float32", 0.01)]),
)
def test_image_joins_the_first_like_it_and_never_a_chain(
    images: list[tuple[int, float, int]], kind: tuple[str, float]
) -> None:
    dtype, span = kind
    thumbnails = []
    for base, light, noise in images:
        turned = np.rot90(RAMP, base) / 255 + light
        random = np.random.default_rng(noise).uniform(-0.01, 0.01, RAMP.shape)
        thumbnails.append((span * (turned + random).clip(0, 1)).astype(dtype))
    first, incomplete = first_similar(thumbnails, span)
    assert incomplete == 0
    leaders: list[int] = []
    for position, thumbnail in enumerate(thumbnails):
        like = [leader for leader in leaders if are_alike(thumbnails[leader], thumbnail, span)]
        assert first[position] == (like[0] if like else position)
        leaders += [] if like else [position]


def test_chain_of_small_changes_is_cut() -> None:
    steps = [(RAMP + 7 * step).astype(np.uint8) for step in range(5)]
    assert first_similar(steps, 255)[0].tolist() == [0, 0, 2, 2, 4]


def test_color_variants_and_other_details_are_not_joined() -> None:
    red = np.zeros((32, 32, 3), np.uint8)
    red[4:28, 4:28, 0] = 200
    green = np.zeros_like(red)
    green[4:28, 4:28, 1] = 102  # as light as red
    assert hash_of(red) == hash_of(green)
    detail = red.copy()
    detail[14:18, 6:10] = 255
    assert np.abs(detail.astype(float) - red).mean() < MAX_MEAN * 255
    assert first_similar([red, green, detail, red], 255)[0].tolist() == [0, 1, 2, 0]


def test_dim_images_are_told_apart_by_the_values_that_occur(tmp_path: Path) -> None:
    random, scene = np.random.default_rng(0), np.linspace(0, 20, 48)
    for number in range(8):
        image = np.broadcast_to(scene, (48, 48)).copy()
        top, left = random.integers(0, 32, 2)
        image[top : top + 16, left : left + 16] = 0
        Image.fromarray(image.astype(np.uint8)).save(tmp_path / f"{number}.png")
    assert ingest_folder(tmp_path).duplicate_of is None


def test_stacks_are_compared_by_bands_from_all_of_them(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(6):
        stack = np.zeros((48, 48, 16), np.uint8)
        stack[:, :, 4:] = random.integers(0, 256, (6, 6, 12)).repeat(8, 0).repeat(8, 1)
        np.save(tmp_path / f"{number}.npy", stack)
    assert ingest_folder(tmp_path).duplicate_of is None


def test_equal_files_are_joined_also_beside_the_sample() -> None:
    one, other = RAMP.astype(np.uint8), RAMP[:, ::-1].astype(np.uint8)
    # Only the copies 3 and 5 are in the sample.
    first, checked = find_duplicates(6, [[0, 3], [4, 5]], {2: one, 3: one, 5: other}, 255)
    assert first is not None
    assert (first.tolist(), checked) == ([0, 1, 0, 0, 4, 4], 3)
    assert groups_of(first) == [[0, 2, 3], [4, 5]]
    assert find_duplicates(2, [], {0: one, 1: other}, 255) == (None, 2)


def test_images_with_too_many_candidates_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MOST_CANDIDATES", 2)
    apart = [(RAMP + 30 * step).astype(np.uint8) for step in (0, 1, 2, 3, 3)]
    assert find_duplicates(5, [], dict(enumerate(apart)), 255) == (None, 3)


def noise_in_two_formats(root: Path, images: int) -> DatasetIndex:
    """Ingest images of noise in random classes, each as PNG and as JPEG."""
    random = np.random.default_rng(0)
    for number in range(images):
        folder = root / f"class{random.integers(10)}"
        folder.mkdir(exist_ok=True)
        noise = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        image = noise.resize((32, 32), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:04d}.png")
        image.save(folder / f"{number:04d}_copy.jpg", quality=85)
    return ingest_folder(root)


def test_held_out_images_have_no_copy_in_the_bank(tmp_path: Path) -> None:
    index = noise_in_two_formats(tmp_path, 150)
    report = index.report()["duplicates"]["similar"]
    assert (report["groups"], report["superfluous"], report["unchecked"]) == (150, 150, 0)
    index.save(tmp_path / "index")
    index = DatasetIndex.load(tmp_path / "index")
    pixels = torch.stack(
        [torch.from_numpy(index.decode(i, 3)).float().flatten() for i in range(300)]
    )
    labels = torch.tensor(index.labels)

    def copies_and_accuracy(index: DatasetIndex) -> tuple[int, float]:
        parts = split(index, Holdout(fraction=0.3))
        trained = {index.paths[i].split("/")[1][:4] for i in parts.train}
        copies = sum(index.paths[i].split("/")[1][:4] in trained for i in parts.held_out)
        features = pixels - pixels.mean(0)
        bank, queries = (features[positions] for positions in (parts.train, parts.held_out))
        return copies, knn_accuracy(bank, labels[parts.train], queries, labels[parts.held_out])

    copies, accuracy = copies_and_accuracy(replace(index, duplicate_of=None))
    assert copies > 50
    assert accuracy > 0.5, "of labels that are random"
    copies, accuracy = copies_and_accuracy(index)
    assert copies == 0
    assert accuracy < 0.2, "chance is 0.1"
