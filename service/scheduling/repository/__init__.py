"""SQL of scheduling. The caller commits."""

from service.scheduling.repository.accounts import max_gpus
from service.scheduling.repository.attempts import (
    AVOIDED,
    AttemptView,
    Ended,
    avoided_nodes,
    ended_attempts,
    finalized_attempts,
    has_unfinalized_attempt,
    live_attempts,
)
from service.scheduling.repository.cluster import (
    addresses,
    drained,
    drains,
    excluded_nodes,
    last_cluster,
    read_nodes,
    save_snapshot,
    snapshot,
    stored_node,
)
from service.scheduling.repository.failures import (
    AVOID_FOR,
    could_run_elsewhere,
    nodes_to_avoid,
)
from service.scheduling.repository.holdings import (
    attempts_on,
    candidates,
    resources_in_use,
    running,
)
from service.scheduling.repository.queue import (
    Entry,
    QueuePart,
    QueuePosition,
    first_per_account,
    front,
    is_queue_full,
    load_queued,
    next_in_account,
    queued,
    weights,
)
from service.scheduling.repository.resources import (
    demands,
    job_demand,
    why_unreadable,
)

__all__ = [
    "AVOIDED",
    "AVOID_FOR",
    "AttemptView",
    "Ended",
    "Entry",
    "QueuePart",
    "QueuePosition",
    "addresses",
    "attempts_on",
    "avoided_nodes",
    "candidates",
    "could_run_elsewhere",
    "demands",
    "drained",
    "drains",
    "ended_attempts",
    "excluded_nodes",
    "finalized_attempts",
    "first_per_account",
    "front",
    "has_unfinalized_attempt",
    "is_queue_full",
    "job_demand",
    "last_cluster",
    "live_attempts",
    "load_queued",
    "max_gpus",
    "next_in_account",
    "nodes_to_avoid",
    "queued",
    "read_nodes",
    "resources_in_use",
    "running",
    "save_snapshot",
    "snapshot",
    "stored_node",
    "weights",
    "why_unreadable",
]
