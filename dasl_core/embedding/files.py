"""Files of embeddings: Parquet, or safetensors, in parts of bounded size.

Memory holds a row group of a Parquet file, or a whole safetensors part, which must be written at once.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from dasl_core.embedding.features import FeatureBatch
from dasl_core.vocabulary import EmbeddingFormat

# Bytes of features in a part. One Parquet part usually holds a whole embedding.
PART_BYTES: dict[EmbeddingFormat, int] = {"parquet": 4 << 30, "safetensors": 256 << 20}
# Bytes of a Parquet row group.
GROUP_BYTES = 32 << 20
SUFFIXES: dict[EmbeddingFormat, str] = {"parquet": ".parquet", "safetensors": ".safetensors"}
KEY, LABEL, FEATURES = "key", "label", "features"
_SHAPE, _IMAGES = b"shape", "images"


def write_parts(
    batches: Iterable[FeatureBatch], folder: Path, format: EmbeddingFormat
) -> Generator[Path, None, None]:
    """Write the features of images, and yield each file once it is complete; the caller may then remove it.

    Parquet has a row for each image: `key`, `label` (null without labels), `features` (a list of fixed size; patch
    features are flattened, with the metadata `shape`). Safetensors has `features`, and the metadata `images`: JSON of
    `keys` and `labels`.

    Raises:
        ValueError: the package for Parquet is not installed.
    """
    write = _write_parquet if format == "parquet" else _write_safetensors
    rest = iter(batches)
    number = 0
    while (first := next(rest, None)) is not None:
        file = folder / f"embedding-{number:05}{SUFFIXES[format]}"
        write(_up_to(first, rest, PART_BYTES[format]), file)
        yield file
        number += 1


def _up_to(first: FeatureBatch, rest: Iterator[FeatureBatch], most: int) -> Iterator[FeatureBatch]:
    """Yield batches up to a number of bytes."""
    batch: FeatureBatch | None = first
    total = 0
    while batch is not None:
        total += batch.features.nbytes
        yield batch
        batch = next(rest, None) if total + batch.features.nbytes <= most else None


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ValueError(
            'format: parquet needs the package pyarrow (in a checkout of DASL: pip install ".[parquet]"); or choose safetensors'
        ) from error
    return pyarrow, pyarrow.parquet


def _write_parquet(batches: Iterable[FeatureBatch], file: Path) -> None:
    arrow, parquet = _pyarrow()
    writer: Any = None
    waiting: list[FeatureBatch] = []

    def table() -> Any:
        joined = _joined(waiting)
        flat = joined.features.reshape(-1)
        width = flat.size // len(joined.keys)
        values = arrow.array(flat)
        shape = json.dumps(joined.features.shape[1:]).encode()
        fields = [
            arrow.field(KEY, arrow.string(), nullable=False),
            arrow.field(LABEL, arrow.string()),
            arrow.field(FEATURES, arrow.list_(values.type, width), metadata={_SHAPE: shape}),
        ]
        columns = [
            arrow.array(joined.keys, arrow.string()),
            arrow.nulls(len(joined.keys), arrow.string())
            if joined.labels is None
            else arrow.array(joined.labels, arrow.string()),
            arrow.FixedSizeListArray.from_arrays(values, width),
        ]
        return arrow.Table.from_arrays(columns, schema=arrow.schema(fields))

    def write() -> None:
        nonlocal writer
        rows = table()
        if writer is None:
            # Features look like noise, so a dictionary or a codec would only cost time.
            codecs = {KEY: "snappy", LABEL: "snappy", f"{FEATURES}.list.element": "none"}
            writer = parquet.ParquetWriter(
                file, rows.schema, compression=codecs, use_dictionary=[LABEL]
            )
        writer.write_table(rows)
        waiting.clear()

    try:
        for batch in batches:
            waiting.append(batch)
            if sum(batch.features.nbytes for batch in waiting) >= GROUP_BYTES:
                write()
        if waiting:
            write()
    finally:
        if writer is not None:
            writer.close()


def _write_safetensors(batches: Iterable[FeatureBatch], file: Path) -> None:
    joined = _joined(list(batches))
    # One entry, because safetensors writes several in random order.
    metadata = {_IMAGES: json.dumps({"keys": joined.keys, "labels": joined.labels})}
    save_file({FEATURES: np.ascontiguousarray(joined.features)}, file, metadata)


def _joined(batches: Sequence[FeatureBatch]) -> FeatureBatch:
    keys = [key for batch in batches for key in batch.keys]
    # All batches have labels, or none has.
    labels = [label for batch in batches for label in batch.labels or ()] or None
    return FeatureBatch(keys, labels, np.concatenate([batch.features for batch in batches]))


def read_parts(files: Iterable[Path]) -> Iterator[FeatureBatch]:
    """Read files of `write_parts`, a row group or a safetensors part at a time."""
    for file in files:
        if file.suffix == SUFFIXES["parquet"]:
            yield from _read_parquet(file)
        else:
            yield _read_safetensors(file)


def _read_parquet(file: Path) -> Iterator[FeatureBatch]:
    _, parquet = _pyarrow()
    opened = parquet.ParquetFile(file)
    with opened:
        for group in range(opened.num_row_groups):
            table = opened.read_row_group(group)
            shape = json.loads(table.schema.field(FEATURES).metadata[_SHAPE])
            column = table.column(FEATURES).combine_chunks()
            features = column.flatten().to_numpy(zero_copy_only=False)
            labels = table.column(LABEL).to_pylist()
            yield FeatureBatch(
                table.column(KEY).to_pylist(),
                None if None in labels else labels,
                features.reshape(len(table), *shape),
            )


def _read_safetensors(file: Path) -> FeatureBatch:
    with safe_open(file, "numpy") as opened:
        images = json.loads(opened.metadata()[_IMAGES])
        features = opened.get_tensor(FEATURES)
    return FeatureBatch(images["keys"], images["labels"], features)
