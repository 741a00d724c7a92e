"""A training with LightlyTrain, for `benchmarks.whole_training`: run by the Python that it is installed for.

Needs nothing but LightlyTrain, and prints one line of JSON: the seconds of each epoch.
"""

import argparse
import itertools
import json
import time
from typing import Any


def main() -> None:
    """Train, then print the seconds of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--output", required=True)
    for name in ("--epochs", "--size", "--batch-size", "--threads"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--precision", required=True)
    arguments = parser.parse_args()

    import lightly_train
    import torch
    from lightly_train._callbacks import callback_helpers
    from pytorch_lightning import Callback

    torch.set_num_threads(arguments.threads)
    ends: list[float] = []

    class Clock(Callback):  # type: ignore[misc, unused-ignore]
        """Records when each epoch ends."""

        def on_train_epoch_end(self, *_: Any) -> None:
            ends.append(time.perf_counter())

    # LightlyTrain takes no callbacks but its own.
    own = callback_helpers.get_callbacks
    callback_helpers.get_callbacks = lambda **options: [*own(**options), Clock()]
    lightly_train.pretrain(
        out=arguments.output,
        data=arguments.data,
        model="timm/resnet18",
        method="simclr",
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        accelerator="cpu",
        devices=1,
        precision=arguments.precision,
        transform_args={"image_size": (arguments.size, arguments.size)},
        model_args={"pretrained": False},
        callbacks={"early_stopping": None},
    )
    print(json.dumps([after - before for before, after in itertools.pairwise(ends)]))


if __name__ == "__main__":
    main()
