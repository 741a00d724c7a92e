"""A home is not served with an empty database in place of its own."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from service.db.migrate import is_empty, upgrade
from service.embedded.known_database import check_database, remember_database
from service.settings import Settings

OTHER = "postgresql+psycopg://dasl:hunter2@db.example.org/dasl"


def of(home: Path, url: str = "") -> Settings:
    return Settings(home=home, database_url=url)


def test_first_start_and_the_same_database_are_fine(tmp_path: Path) -> None:
    check_database(of(tmp_path))
    remember_database(of(tmp_path, OTHER))
    check_database(of(tmp_path, OTHER.replace("hunter2", "changed")))


def test_forgotten_address_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    remember_database(of(tmp_path, OTHER))
    assert "hunter2" not in (tmp_path / "database").read_text()
    with pytest.raises(ValueError, match=r"^DASL_DATABASE_URL: .*dasl.db is empty") as refused:
        check_database(of(tmp_path))
    assert "was used with postgresql+psycopg://db.example.org/dasl until now" in str(refused.value)
    assert not (tmp_path / "dasl.db").exists()
    (tmp_path / "database").unlink()  # as the message says
    check_database(of(tmp_path))


@pytest.mark.parametrize("is_truncated", [False, True])
def test_lost_database_is_refused(tmp_path: Path, is_truncated: bool) -> None:
    """Its file is gone, or empty after a power failure: a new one would hide that all rows are lost."""
    settings = of(tmp_path)
    upgrade(settings.database_url)
    remember_database(settings)
    check_database(settings)
    for file in tmp_path.glob("dasl.db*"):
        file.unlink()
    if is_truncated:
        (tmp_path / "dasl.db").touch()
    with pytest.raises(ValueError, match=r"its tables are lost\. Restore a backup with dasl db"):
        check_database(settings)
    assert (tmp_path / "dasl.db").exists() == is_truncated
    (tmp_path / "database").unlink()  # as the message says
    check_database(settings)


def test_another_database_with_tables_is_a_move(tmp_path: Path) -> None:
    remember_database(of(tmp_path, OTHER))
    moved = f"sqlite:///{tmp_path / 'moved.db'}"
    upgrade(moved)
    check_database(of(tmp_path, moved))


@pytest.mark.dialect
def test_empty_database_has_no_tables(database_url: str) -> None:
    assert not is_empty(database_url)
    engine = create_engine(make_url(database_url))
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE alembic_version")
    engine.dispose()
    assert is_empty(database_url)


def test_database_that_is_away_is_left_to_the_upgrade() -> None:
    assert not is_empty("postgresql+psycopg://dasl@127.0.0.1:9/dasl")
