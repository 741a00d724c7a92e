"""SQL of scheduling. The caller commits."""

from service.scheduling.repository.attempts import (
    AVOIDED,
    AttemptView,
    Ended,
    attempts_on,
    avoided_nodes,
    candidates,
    ended_attempts,
    finalized_attempts,
    has_unfinalized_attempt,
    live_attempts,
    resources_in_use,
    running,
)
from service.scheduling.repository.cluster import (
    addresses,
    decisions,
    drained,
    drains,
    excluded_nodes,
    known_cluster,
    last_cluster,
    read_nodes,
    save_decisions,
    save_snapshot,
    snapshot,
    stored_node,
)
from service.scheduling.repository.failures import AVOID_FOR, could_run_elsewhere, nodes_to_avoid
from service.scheduling.repository.queue import (
    Entry,
    QueuePosition,
    first_per_account,
    front,
    is_queue_full,
    load_queued,
    next_in_account,
    queued,
    weights,
)
from service.scheduling.repository.resources import demands, job_demand, max_gpus, why_unreadable
