"""A made-up migration that follows the real ones, as a later version of DASL would bring."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.config import Config
from sqlalchemy import Connection

from service.db import migrate

NEXT = "9998"
"""Its revision."""
_SCRIPT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = {revision!r}, {head!r}
branch_labels = depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("color", sa.String(20)))
    op.execute({statement!r})
"""


@contextmanager
def next_version(
    folder: Path, statement: str = "UPDATE tenants SET color = 'blue'"
) -> Iterator[None]:
    """Let this process be of a version with one more migration, which adds the column `tenants.color`.

    Args:
        folder: an empty one, for the migration.
        statement: executed after the column is added.
    """
    head = migrate.head()
    original = migrate.configuration

    def configuration(connection: Connection | None = None) -> Config:
        config = original(connection)
        folders = [f"{config.get_main_option('script_location')}/versions", str(folder)]
        config.set_main_option("version_locations", os.pathsep.join(folders))
        return config

    script = _SCRIPT.format(revision=NEXT, head=head, statement=statement)
    (folder / f"{NEXT}_next.py").write_text(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "configuration", configuration)
        migrate._revisions.cache_clear()
        try:
            yield
        finally:
            migrate._revisions.cache_clear()
