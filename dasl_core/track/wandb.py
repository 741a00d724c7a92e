"""Weights & Biases: an offline run, to upload with `wandb sync`."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dasl_core.spec import WandB
from dasl_core.track.tracker import Ending, Point, TrackedRun, TrackerUnusable

if TYPE_CHECKING:
    from wandb import Run


class OfflineWandB:
    """Writes each attempt as an offline run, published as a tar file; the attempts of a job are one group."""

    name, key = "Weights & Biases", "wandb"

    def __init__(self, settings: WandB, run: TrackedRun) -> None:
        self._settings, self._run = settings, run
        self._wandb_run: Run | None = None
        self._teardown: Callable[[], None] | None = None
        self._tar = run.folder / f"wandb-{run.attempt}.tar"

    def start(self) -> str:
        """Start the run; return the name of its tar file, or its folder if users have access to it."""
        # Even offline, the package would report its own errors to a server.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError as error:
            raise TrackerUnusable(
                f"{error}. Install dasl[wandb] where ranks run, or set track.wandb: null."
            ) from error
        run, settings = self._run, self._settings
        try:
            self._wandb_run = wandb.init(
                project=settings.project,
                entity=settings.entity,
                name=f"{run.spec.name}-{run.attempt}" if run.attempt > 1 else run.spec.name,
                id=f"{run.id}-{run.attempt}",
                group=run.id,
                config=run.spec.model_dump(mode="json"),
                # Record only what is logged, and nothing about this process.
                settings=wandb.Settings(
                    mode="offline",
                    root_dir=str(run.folder),
                    console="off",
                    silent=True,
                    disable_git=True,
                    disable_code=True,
                    disable_job_creation=True,
                    x_disable_stats=True,
                    x_disable_meta=True,
                ),
            )
        except wandb.Error as error:
            raise TrackerUnusable(str(error)) from error
        self._teardown = wandb.teardown
        return self._tar.name if run.publish else f"wandb sync {self._folder}"

    def log(self, points: Sequence[Point]) -> None:
        """Log the points of each step."""
        assert self._wandb_run is not None, "started"
        for point in points:
            self._wandb_run.log(dict(point.values), step=point.step)

    def publish(self) -> None:
        """Publish a tar file of the run's folder."""
        if self._run.publish is None:
            return
        folder = self._folder
        with tarfile.open(self._tar, "w") as tar:
            tar.add(folder, arcname=folder.name, filter=_without_links)
        self._run.publish(self._tar)

    def finish(self, ending: Ending) -> None:
        """Close the run and publish it."""
        assert self._wandb_run is not None, "started"
        self._wandb_run.finish(exit_code=1 if ending == "failed" else 0)
        self.close()  # only the end of its process writes all records to the file
        if ending != "superseded":
            self.publish()

    def close(self) -> None:
        """End the processes of the package."""
        if self._teardown is not None:
            self._teardown()

    @property
    def _folder(self) -> Path:
        assert self._wandb_run is not None, "started"
        return Path(self._wandb_run.settings.sync_dir).absolute()


def _without_links(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Exclude links, which point to logs outside of the folder."""
    return member if member.isreg() or member.isdir() else None
