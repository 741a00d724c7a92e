"""Files and database of an older version's service, unpacked for this version.

`tests/fixtures/make_v0_1.py` creates them and records the API's answers; the tests compare.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import platform
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fastapi.testclient import TestClient
from sqlalchemy import Engine, create_engine, text

from dasl_core.data.index import DatasetIndex
from dasl_core.spec import ResolvedJobSpec, versions
from tests.support.training_world import Recorder, run

FOLDER = Path(__file__).parents[1] / "fixtures" / "v0_1"
FILES, DUMP, RECORD = (
    FOLDER / name for name in ("files.tar.xz", "postgresql.sql.xz", "record.json.xz")
)

# The slow test of `tests/e2e` resumes the job to its end.
RESUMED_STEPS = 20

# Columns with paths that a moved service needs. Paths elsewhere (reports, errors, logs) describe the
# past and stay as they are.
_STORED_PATHS = (
    ("datasets", "uri"),
    ("datasets", "index_uri"),
    ("checkpoints", "uri"),
    ("artifacts", "uri"),
)
# Fields of answers that version 0.1 did not have.
_OF_NODES = {"name", "labels", "gpu_type", "total_memory", "used_memory", "drained"}
_OF_RETENTION = {"logs_removed_at", "metrics_removed_at", "artifacts_removed_at"}
ADDED = {
    "drains",
    "expires_at",
    "max_hours",
    "max_pending_datasets",
    "progress",
    "stop_reason",
    "user_id",
    "verdict",
    "workers",
    *_OF_NODES,
    *_OF_RETENTION,
}
_JOB_LISTS = ("attempts", "events", "metrics", "evaluations", "checkpoints", "artifacts")


@dataclass(frozen=True)
class OldService:
    """An unpacked service: its home, its images, and its recorded answers."""

    root: Path
    record: dict[str, Any]

    @property
    def home(self) -> Path:
        """`DASL_HOME`."""
        return self.root / "home"

    def original(self, answer: dict[str, Any]) -> Any:
        """Return an answer with the paths that the service had at recording time."""
        return json.loads(json.dumps(answer).replace(str(self.root), self.record["root"]))


def unpack(folder: Path) -> OldService:
    """Unpack home and images into an empty folder. The databases still contain the old paths."""
    record = json.loads(lzma.decompress(RECORD.read_bytes()))
    with lzma.open(FILES) as stream, tarfile.open(fileobj=stream) as archive:
        archive.extractall(folder)  # `filter` is newer than Debian's Python 3.11.2
    for path in folder.glob("home/artifacts/datasets/*/*/index.json.gz"):
        index = json.loads(gzip.decompress(path.read_bytes()))
        index["root"] = index["root"].replace(record["root"], str(folder))
        path.write_bytes(gzip.compress(json.dumps(index).encode()))
    return OldService(folder, record)


def restore_postgresql(url: str) -> None:
    """Replace the content of a PostgreSQL database with the dump."""
    statements = lzma.decompress(DUMP.read_bytes()).decode()
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
        # The dump consists of several statements without parameters.
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.execute(statements)
    engine.dispose()


def relocate(engine: Engine, service: OldService) -> None:
    """Replace the old root in every stored path."""
    with engine.begin() as connection:
        for table, column in _STORED_PATHS:
            connection.execute(
                text(f"UPDATE {table} SET {column} = replace({column}, :old, :new)"),
                {"old": service.record["root"], "new": str(service.root)},
            )


def resume_paused(old: OldService, folder: Path) -> Recorder:
    """Resume the paused job in this process for `RESUMED_STEPS`, and return its reports."""
    paused = old.record["jobs"]["paused"]
    job = old.record["answers"][f"/v1/jobs/{paused}"]["body"]
    spec = ResolvedJobSpec.model_validate(versions.upgrade(job["resolved"], 1))
    [checkpoint] = old.home.glob(f"artifacts/jobs/{paused}/attempts/*/checkpoints/*")
    [index] = old.home.glob(f"artifacts/datasets/{job['dataset']['id']}/*/index.json.gz")
    reporter = Recorder(
        folder / "out", lambda started: "cancel" if started >= RESUMED_STEPS else "run"
    )
    outcome = run(
        spec,
        DatasetIndex.load(index),
        folder / "cache",
        reporter,
        checkpoint,
        threads=spec.resources.cpus_per_worker,
    )
    assert outcome == "cancelled"
    first = old.record["resumed"]["step"] + 1
    steps = [point["step"] for point in reporter.points]
    assert steps == list(range(first, first + RESUMED_STEPS))
    return reporter


def answers(client: TestClient, admin_token: str, token: str) -> dict[str, Any]:
    """Return the answers of all list and get endpoints by path; for files, their SHA-256."""
    answers_by_path: dict[str, Any] = {}
    reader = {"Authorization": f"Bearer {token}"}
    admin = {"Authorization": f"Bearer {admin_token}"}

    def get(path: str, headers: dict[str, str] = reader) -> Any:
        answer = client.get(path, headers=headers)
        body = answer.json() if "json" in answer.headers.get("content-type", "") else answer.text
        answers_by_path[path] = {"status": answer.status_code, "body": body}
        return body

    def get_file(path: str) -> None:
        answer = client.get(path, headers=reader)
        digest = hashlib.sha256(answer.content).hexdigest()
        answers_by_path[path] = {"status": answer.status_code, "sha256": digest}

    jobs = get("/v1/jobs?limit=100")["data"]
    get("/v1/jobs?limit=2")
    get("/v1/jobs?status=succeeded&status=paused")
    get("/v1/jobs?method=simclr&tag=kind:small")
    for job in jobs:
        path = f"/v1/jobs/{job['id']}"
        get(path)
        lists = {name: get(f"{path}/{name}").get("data") for name in _JOB_LISTS}
        for attempt in lists["attempts"]:
            get(f"{path}/logs?attempt={attempt['number']}")
        for artifact in lists["artifacts"]:
            get_file(f"{path}/artifacts/{artifact['name']}")
        for checkpoint in lists["checkpoints"]:
            get(f"/v1/checkpoints/{checkpoint['id']}")
            for file in checkpoint["files"]:
                get_file(f"/v1/checkpoints/{checkpoint['id']}/files/{file['name']}")
    for dataset in get("/v1/datasets")["data"]:
        get(f"/v1/datasets/{dataset['id']}")
    get("/v1/tokens", admin)
    get("/v1/tokens/current")
    get("/v1/audit?limit=100", admin)
    cluster = get("/v1/cluster")
    for waiting in cluster["queue"]:
        waiting.pop("starts_by", None)  # depends on the current time
        waiting.pop("reason", None)
    return answers_by_path


def differences(old: object, new: object, where: str = "") -> Iterator[str]:
    """Return the places where two JSON values differ, except fields added since, which must be null or empty."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key in ADDED and key not in old and not new[key]:
                continue
            if key not in old or key not in new:
                yield f"{where}/{key}: only in the {'old' if key in old else 'new'} one"
            else:
                yield from differences(old[key], new[key], f"{where}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{where}/{number}")
    elif old != new:
        yield f"{where}: {old!r} != {new!r}"


def machine() -> dict[str, str]:
    """Return the machine's properties that affect the last bits of losses."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "torch": str(torch.__version__),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": names[0] if names else platform.processor(),
    }
