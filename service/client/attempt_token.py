"""Delivery of an attempt's (or ingest run's) token to its driver, as metadata of the Ray job.

Ray passes metadata only to the driver, in its environment. Values in the job's `runtime_env` would appear
in Ray's log and in the command lines of all processes of the job, readable by every local user.
"""

import json
import os

METADATA_KEY = "dasl_worker_token"
# Also in `ray._private.runtime_env.constants`, but importing Ray takes seconds.
RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
TOKEN_VARIABLE = "DASL_WORKER_TOKEN"
"""Takes precedence over the metadata of the Ray job."""


def read_attempt_token() -> str:
    """Return the token of this driver's attempt or ingest run.

    DASL_WORKER_TOKEN takes precedence, so that a driver can be started manually.

    Raises:
        ValueError: there is no token.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is None:
        job = json.loads(os.environ.get(RAY_JOB_CONFIG, "{}"))
        token = job.get("metadata", {}).get(METADATA_KEY)
    if not token:
        raise ValueError(
            f"no token for the worker API: DASL_WORKER_TOKEN is not set, and the Ray job's metadata has no "
            f"{METADATA_KEY!r}"
        )
    return str(token)
