"""Settings that would lead somewhere else are refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%20b", "a::b"])
def test_a_home_that_a_url_would_read_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValidationError, match="home must be a path without"):
        Settings(home=tmp_path / name)


def test_a_home_may_hold_spaces_and_umlauts(tmp_path: Path) -> None:
    home = tmp_path / "Möwen am Strand"
    settings = Settings(home=home)
    assert settings.database_url == f"sqlite:///{home}/dasl.db"
    assert settings.artifacts_uri == f"file://{home}/artifacts"
