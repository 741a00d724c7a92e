"""A real `dasl serve`, its training images, and its processes."""

import io
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from PIL import Image

from service.client import Client
from service.embedded.subreaper import descendants
from tests.support.polling import until
from tests.support.processes import commands, part_of

# Socket state in `/proc/net/tcp`.
LISTENS = "0A"
CLASSES = ("circles", "squares", "stripes", "waves")


@dataclass(frozen=True)
class Served:
    """A running service."""

    pid: int
    url: str
    token: str
    client: Client
    dataset: str
    """Name of the registered folder of `write_images`."""
    artifacts: Path

    def processes(self) -> dict[int, list[str]]:
        """Return the command lines of all descendants of the service's process."""
        return commands(self.pid)

    def exposed(self) -> list[str]:
        """Return the non-loopback listeners as in `/proc/net/tcp`: `address:port`."""
        sockets = set()
        for pid in (self.pid, *descendants(self.pid)):
            with suppress(OSError):  # The process ended, or the file was closed.
                sockets |= {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        addresses = []
        for table, loopback in (
            ("tcp", r"......7F"),
            ("tcp6", r"0{24}01000000|0{16}FFFF0000......7F"),
        ):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                mine = state == LISTENS and f"socket:[{inode}]" in sockets
                if mine and not re.fullmatch(loopback, local.partition(":")[0]):
                    addresses.append(local)
        return addresses

    def drivers(self, job: str) -> list[int]:
        """Return the processes of a job's training driver."""
        return [
            pid
            for pid, words in self.processes().items()
            if part_of(words) == "driver" and job in words
        ]

    def controllers(self) -> list[int]:
        """Return the processes that run Ray Train's controller."""
        return [pid for pid, words in self.processes().items() if part_of(words) == "controller"]

    def ranks(self) -> list[int]:
        """Return the processes of the running training ranks."""
        return [pid for pid, words in self.processes().items() if part_of(words) == "rank"]


@contextmanager
def serving(
    folder: Path, home: Path, *, on_terminal: bool = False, **settings: str
) -> Iterator[tuple[int, str, str]]:
    """Run `dasl serve` on a home, with other output in `folder`; yield its process, URL and token."""
    process, output = start(folder, home, on_terminal=on_terminal, **settings)

    def line(start: str) -> str | None:
        assert process.poll() is None, output.read_text()
        lines = [x for x in output.read_text().splitlines() if x.startswith(start)]
        return lines[-1].removeprefix(start) if lines else None

    try:
        url = until(lambda: line("DASL serves at "), "the API")
        # A terminal also gets the token itself.
        config = until(lambda: line("Token: "), "the token").removesuffix(")").rpartition("in ")[2]
        token = tomllib.loads(Path(config).read_text())["token"]
        yield process.pid, url, token
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, output.read_text()
        assert "Traceback" not in output.read_text(), output.read_text()
    finally:
        process.kill()
        process.wait()
        session = home / "ray"
        if session.is_symlink():
            shutil.rmtree(session.readlink().parent, ignore_errors=True)


def start(
    folder: Path, home: Path, *, on_terminal: bool = False, **settings: str
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `dasl serve` as `serving` does; return its process and the file of its output."""
    output = folder / "serve.out"
    env = {
        **{name: value for name, value in os.environ.items() if name[:5] != "DASL_"},
        "XDG_CONFIG_HOME": str(folder / "config"),
        "DASL_HOME": str(home),
        "DASL_CACHE_DIR": str(folder / "cache"),
        "DASL_PORT": "0",
        "DASL_HEARTBEAT_SECONDS": "0.5",
        # They take the time of a core to import torch, and most tests end before they serve.
        "DASL_STANDBY_RANKS": "0",
        **settings,
    }
    with output.open("wb") as file, ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "serve"],
            stdin=subprocess.DEVNULL,
            stdout=stack.enter_context(_terminal(output)) if on_terminal else file,
            stderr=subprocess.STDOUT,
            env=env,
        )
    return process, output


@contextmanager
def _terminal(output: Path) -> Iterator[int]:
    """Open a terminal whose content is copied to a file until the processes that have it end."""
    reader, terminal = pty.openpty()

    def copy() -> None:
        # Reading fails once all writers have closed it.
        with suppress(OSError), output.open("wb", buffering=0) as file:
            while block := os.read(reader, 4096):
                file.write(block)
        os.close(reader)

    Thread(target=copy, daemon=True).start()
    try:
        yield terminal
    finally:
        os.close(terminal)


def spec(dataset: str, **changes: Any) -> dict[str, Any]:
    """Return a small job: two ranks, SimCLR with DAR, three epochs of 40 steps, a checkpoint per epoch."""
    return {
        "dataset": dataset,
        "backbone": {"name": "test_resnet", "image_size": 16},
        "dar": {"weight": 0.1},
        "train": {"epochs": 3, "batch_size": 8, "checkpoint_every_epochs": 1},
        "evaluate": {"every_epochs": 1},
        "resources": {"workers": 2, "cpus_per_worker": 1, "gpus_per_worker": 0},
    } | changes


def write_images(root: Path, count: int) -> None:
    """Write images of four classes, no two of them equal."""
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for number in range(count // len(CLASSES)):
            picture = draw(label, number)
            Image.fromarray(picture).save(root / name / f"{number:04d}.png")


def draw(label: int, number: int) -> np.ndarray:
    """Draw an image of shape (24, 24, 3), uint8."""
    random = np.random.default_rng((label, number))
    y, x = np.mgrid[:24, :24] - random.uniform(8, 16, (2, 1, 1))
    size = random.uniform(4, 9)
    shape = (
        np.hypot(x, y) < size,
        np.maximum(abs(x), abs(y)) < size,
        x % size < size / 2,
        np.sin(x / 3) * 4 < y,
    )[label]
    color, ground = random.integers(0, 256, (2, 3))
    picture = np.where(shape[:, :, None], color, ground) + random.normal(0, 8, (24, 24, 3))
    pixels: np.ndarray = picture.clip(0, 255).astype(np.uint8)
    return pixels


def write_odd_images(root: Path) -> int:
    """Write valid images of unusual formats and return their number."""
    picture = draw(0, 10_000)
    luminance = picture[:, :, 0]
    folder = root / CLASSES[0]
    deep = Image.fromarray(luminance.astype(np.uint16) * 257)
    assert deep.mode == "I;16"
    deep.save(folder / "deep.png")
    Image.fromarray(luminance).save(folder / "gray.png")
    Image.fromarray(picture).convert("CMYK").save(folder / "cmyk.jpg")
    return 3


def write_broken_images(root: Path) -> dict[str, str]:
    """Write unusable files; return a mapping from path to a part of the expected reason."""
    folder = root / CLASSES[1]
    jpeg = io.BytesIO()
    Image.fromarray(draw(1, 10_000)).resize((200, 200)).save(jpeg, "JPEG", quality=95)
    (folder / "cut.jpg").write_bytes(jpeg.getvalue()[: len(jpeg.getvalue()) // 2])
    (folder / "empty.png").touch()
    (folder / "text.png").write_text("This is not a picture.\n")
    outside = root.parent / "outside.png"
    Image.fromarray(draw(2, 10_000)).save(outside)
    (folder / "way-out.png").symlink_to(os.path.relpath(outside, folder))
    return {
        f"{CLASSES[1]}/cut.jpg": "truncated",
        f"{CLASSES[1]}/empty.png": "empty",
        f"{CLASSES[1]}/text.png": "not an image",
        f"{CLASSES[1]}/way-out.png": "leads out of the data set's folder",
    }
