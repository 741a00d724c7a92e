"""A driver that trains nothing: its first attempt saves a checkpoint and goes on for ever.

Its second attempt resumes from that checkpoint and succeeds. It starts a process in a session of
its own, as a data loader that got lost might be.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import time
from pathlib import Path

from service.client.attempt_token import own_token
from service.client.worker import WorkerClient


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    given = parser.parse_args()
    client = WorkerClient(os.environ["DASL_API_URL"], own_token(), given.job, given.attempt)
    start = client.start()
    print("resumes from step", start.resume.step if start.resume else None)
    if start.resume is not None:
        client.finish("succeeded")
        return
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    folder = Path(start.artifacts_uri.removeprefix("file://")) / "checkpoints" / "7"
    folder.mkdir(parents=True)
    (folder / "state").write_bytes(b"weights")
    entry = {"name": "state", "size": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}
    client.checkpoint(step=7, epoch=1.0, uri=f"file://{folder}", files=[entry])
    while True:
        client.heartbeat({"step": 7})
        time.sleep(0.2)


if __name__ == "__main__":
    main()
