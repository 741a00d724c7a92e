"""Settings that the driver, the ranks and ingest runs share."""

PATIENCE_SECONDS = 3600.0
"""How long to retry requests to an API that is away. Giving up would cost one of the job's few attempts,
and an attempt that is no longer wanted has its process ended anyway."""
