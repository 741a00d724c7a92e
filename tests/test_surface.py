"""The public surface changes only together with its recorded copy."""

from __future__ import annotations

import json

from tools.surface import SURFACE, surface


def test_surface_equals_recorded_one() -> None:
    """After an intended change run `python -m tools.surface` and review the diff."""
    recorded = json.loads(SURFACE.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(surface())) == recorded
