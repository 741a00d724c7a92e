"""The first tables.

No version with other tables was released, so these are the tables of the models. Whoever changes a model after the
first release writes them out here first: `alembic.autogenerate` renders them.
"""

import sqlalchemy as sa
from alembic import op

from service.db.models import Base, EventCounter

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    Base.metadata.create_all(op.get_bind())
    op.execute(sa.insert(EventCounter).values(id=1, last=0))
