"""litData, which is no dependency of ours: imported only if it is installed."""

from pathlib import Path
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset, optimize
from torch.utils.data import DataLoader

from benchmarks.data.sources import Source
from benchmarks.data.transforms import Transform, decode_pillow


class Decoded:
    """Decode an image and transform it."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def __call__(self, content: bytes) -> Any:
        return self.transform(decode_pillow(content))


def streamed(
    source: Source, folder: Path, views: Transform, batch_size: int, workers: int
) -> DataLoader[Any]:
    """Write the images of a source to litData's chunks and return a loader of them."""
    optimize(
        fn=source.read,
        inputs=list(range(len(source))),
        output_dir=str(folder),
        chunk_bytes="64MB",
        num_workers=1,
        verbose=False,
    )
    images = StreamingDataset(str(folder), shuffle=True, drop_last=True, transform=Decoded(views))
    loader: DataLoader[Any] = StreamingDataLoader(
        images,
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=True,
        drop_last=True,
    )
    return loader
