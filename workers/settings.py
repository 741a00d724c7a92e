"""Timeouts of the processes of a run, and the settings of Ray under them."""

# An API that is away must not cost an attempt: a job has few of them. The dispatcher ends a driver that
# is no longer wanted.
PATIENCE_SECONDS = 3600.0
# For reports that nothing depends on.
BEST_EFFORT_SECONDS = 10.0

RAY_SETTINGS = {
    # Ray Train's defaults wait ten minutes for a dead worker and forever for a stuck collective.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "600",
    # How soon the end of the ranks is noticed; the next job waits for it. The default is 2 s.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Each of these costs start-up time and is unused: a wrapped print, exported metrics, and one more
    # process with all of torch that watches for nodes about to be preempted.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # The log is read in files and over the API, where colors are noise.
    "RAY_COLOR_PREFIX": "0",
    # Ranks log nearly the same lines. By default Ray drops all but one of the lines that differ only in
    # numbers, such as those of two steps.
    "RAY_DEDUP_LOGS": "0",
}
