"""Tables of the cluster: the dispatcher's snapshot, drains and leases."""

from datetime import datetime

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base, Object


class ClusterSnapshot(Base):
    """The dispatcher's last report of the Ray cluster and of itself: one row, `id` 1."""

    __tablename__ = "cluster_snapshot"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    alive: Mapped[bool]
    nodes: Mapped[list[Object]]
    total_cpus: Mapped[float]
    total_gpus: Mapped[float]
    used_cpus: Mapped[float]
    used_gpus: Mapped[float]
    # A `service.scheduling.dispatcher_report.DispatcherReport`.
    dispatcher: Mapped[Object]


class QueueDecisions(Base):
    """The dispatcher's last decisions on the first jobs of the queue: one row, `id` 1."""

    __tablename__ = "queue_decisions"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # A list of `service.scheduling.stored_decisions.StoredDecision`.
    decisions: Mapped[list[Object]]


class Drain(Base):
    """A node that gets no new workers, by its id, name or address; `*` is the whole cluster."""

    __tablename__ = "drains"

    node: Mapped[str] = mapped_column(String(200), primary_key=True)
    # Whether attempts with ranks there save a checkpoint and stop.
    save: Mapped[bool]
    reason: Mapped[str] = mapped_column(Text)
    tenant: Mapped[str] = mapped_column(String(100))
    token_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]


class Lease(Base):
    """The holder of a role that only one process may have, and the time of its expiry."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    expires_at: Mapped[datetime]


CHECKPOINT_SWEEP = "checkpoints"


class Sweep(Base):
    """How far a sweep of the dispatcher has come: the position of a run in the order of ends."""

    __tablename__ = "sweeps"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    finished_at: Mapped[datetime]
    owner: Mapped[str] = mapped_column(String(40))
    number: Mapped[int]
