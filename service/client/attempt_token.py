"""How the token of an attempt, or of an ingest run, reaches its driver.

As metadata of Ray's job: Ray hands these to the driver alone, in its environment. What is in the job's
`runtime_env` it writes into its log and into the command lines of all the job's processes, for every
local user to read.
"""

from __future__ import annotations

import json
import os

METADATA_KEY = "dasl_worker_token"
# `ray._private.runtime_env.constants` has it, but importing Ray takes seconds.
RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def own_token() -> str:
    """The token of the attempt or ingest run that this process drives. DASL_WORKER_TOKEN goes first: so
    one can be driven by hand.

    Raises:
        ValueError: there is none.
    """
    token = os.environ.get("DASL_WORKER_TOKEN")
    if token is None:
        job = json.loads(os.environ.get(RAY_JOB_CONFIG, "{}"))
        token = job.get("metadata", {}).get(METADATA_KEY)
    if not token:
        raise ValueError(
            f"no token to report home with: DASL_WORKER_TOKEN is not set, and Ray's job has no {METADATA_KEY!r} "
            "in its metadata"
        )
    return str(token)
