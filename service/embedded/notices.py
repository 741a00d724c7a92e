"""Messages of `dasl serve` about its cluster and its jobs."""

from service.db.session import Database
from service.observability import repository
from service.scheduling.nodes import Cluster
from service.states import JobStatus


def describe_cluster(cluster: Cluster) -> str:
    """Describe the CPU cores and GPUs that jobs can use."""
    cores, gpus = cluster.total_cpus, cluster.total_gpus
    with_gpus = f"{gpus:g} GPU{'s' if gpus != 1 else ''}" if gpus else "no GPU"
    return f"Jobs can use {cores:g} CPU core{'s' if cores != 1 else ''} and {with_gpus}."


def describe_unfinished(database: Database) -> str | None:
    """Describe the jobs that the next start continues; None if there are none. Paused jobs do not count."""
    with database.read() as session:
        counts = repository.jobs_by_status(session)
    number = sum(count for status, count in counts.items() if status != JobStatus.PAUSED)
    if not number:
        return None
    return f"{number} job{'s continue' if number > 1 else ' continues'} at the next start."
