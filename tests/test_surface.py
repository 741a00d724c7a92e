"""The public surface changes only together with its recorded copy."""

from tools.surface import SURFACE, surface


def test_surface_equals_recorded_one() -> None:
    """After an intended change run `python -m tools.surface` and review the diff."""
    assert surface() == SURFACE.read_text(encoding="utf-8").splitlines()
