"""Look-up of runs by owner and number."""

from sqlalchemy import select

from service.db.models import Run
from service.db.session import Database


def submission_id(database: Database, owner: str, number: int = 1) -> str:
    """Return the id at Ray of a job's attempt or a data set's ingest run."""
    with database.read() as session:
        # Only the column: a run may be of a kind that this version does not know.
        query = select(Run.submission_id).where(Run.owner == owner, Run.number == number)
        return session.scalars(query).one()
