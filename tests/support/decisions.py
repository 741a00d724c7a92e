"""Decisions on the queue without a dispatcher."""

from datetime import UTC, datetime, timedelta

from service.db import leases
from service.db.leases import DISPATCHER_LEASE, MAX_LEASE
from service.db.session import Database
from service.scheduling import admission, window
from service.scheduling import repository as scheduling
from service.scheduling.dispatcher_report import DispatcherReport
from service.scheduling.foreign_use import ForeignUse
from service.scheduling.stored_decisions import to_store
from service.scheduling.window import QueueWindow


def store_decisions(database: Database) -> None:
    """Store what a dispatcher would decide by the last snapshot; nothing starts."""
    now = datetime.now(UTC)
    with database.write() as session:
        assert leases.take_lease(session, DISPATCHER_LEASE, "decides", MAX_LEASE)
        saved = scheduling.snapshot(session)
        assert saved is not None
        cluster = scheduling.known_cluster(session, saved)
        taken = scheduling.resources_in_use(session, now)
        queue = QueueWindow(timedelta(days=7)).read(session, taken, now)
        foreign = ForeignUse().by_node(cluster.nodes, taken)
        report = DispatcherReport.model_validate(saved.dispatcher)
        decisions = admission.decide(
            cluster,
            taken,
            queue,
            now,
            foreign,
            is_writable=report.is_writable,
            api_answers=report.api_answers,
        )
        scheduling.save_decisions(session, to_store(decisions[: window.ALWAYS]))
