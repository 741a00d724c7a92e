"""Timeouts of the processes of a run, and their Ray settings."""

# An outage of the API must not use up a restart of the job. The dispatcher ends unwanted drivers.
PATIENCE_SECONDS = 3600.0
# Timeout for best-effort reports.
BEST_EFFORT_SECONDS = 10.0

RAY_SETTINGS = {
    # Ray Train's default waits ten minutes for a dead worker.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    # Poll interval for the end of the ranks, which the next job waits for. The default is 2 s.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Unused features that cost start-up time: a wrapped print, exported metrics, and an extra process
    # with all of torch that watches for node preemption.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Ray Train sets this for its processes; also set here, so that standby processes have the same environment.
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
    # Users read the log in files and over the API, where color codes are noise.
    "RAY_COLOR_PREFIX": "0",
    # By default Ray drops all but one of the lines that differ only in numbers, such as those of two
    # steps, and ranks log nearly the same lines.
    "RAY_DEDUP_LOGS": "0",
}
