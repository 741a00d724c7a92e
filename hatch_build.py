"""Hook of the build backend, for the wheel, the source distribution and `pip install --editable`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SyncClient(BuildHookInterface[Any]):
    """Writes the synchronous client, which git does not hold."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write its modules into the source tree."""
        runpy.run_path(str(Path(self.root, "tools", "sync_client.py")), run_name="__main__")
