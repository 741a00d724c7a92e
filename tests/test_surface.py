"""The public surface changes only in commits that say so."""

from __future__ import annotations

import json

from tools.surface import SURFACE, surface


def test_surface_equals_recorded_one() -> None:
    """After a change that is meant: `python -m tools.surface`, and look at the diff."""
    recorded = json.loads(SURFACE.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(surface())) == recorded
