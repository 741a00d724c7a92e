"""Train the collapsed run of docs/healthy.md.

`python -m tools.collapse_example` takes a minute or two on two cores, writes its curves to docs/images, and prints the alarm and the
verdict, which the page quotes.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from examples.emoji import unpack_emoji

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
BUILD = ROOT / "build" / "collapse-example"
CLASSES = 100

SPEC: dict[str, Any] = {
    "name": "collapsed",
    "dataset": "emoji",
    "backbone": {"name": "test_resnet", "image_size": 32, "stem": "standard"},
    # Emoji are upright and small: flips and strong crops would remove what distinguishes one from another.
    "augment": {
        "crop_scale": [0.7, 1.0],
        "flip": 0.0,
        "jitter": 0.5,
        "grayscale": 0.1,
        "blur": 0.0,
    },
    "evaluate": {"holdout": {"fraction": 0.5, "by": "class"}, "retrieval": [1], "every_epochs": 4},
    "method": {"name": "simclr", "temperature": 0.07},
    # Elementwise DAR is least when all embeddings coincide, and its default weight is 0.003.
    "dar": {"difference": "abs", "weight": 10.0},
    "train": {"epochs": 20, "batch_size": 32, "optimizer": {"name": "adamw", "lr": 0.003}},
}


def main() -> None:
    """Train, copy the curves, and print what was reported."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    images, spec, output = unpack_emoji(BUILD, CLASSES), BUILD / "spec.json", BUILD / "run"
    spec.write_text(json.dumps(SPEC), encoding="utf-8")
    command = [sys.executable, "-m", "dasl_core.standalone", str(spec)]
    subprocess.run([*command, "--data", str(images), "-o", str(output)], check=True)
    shutil.copy(output / "curves.png", IMAGES / "run-collapsed.png")


if __name__ == "__main__":
    main()
