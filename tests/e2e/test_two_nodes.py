"""Jobs across two Ray nodes whose cable is cut, whose service is killed, or of which one is drained."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from service.client import Client
from service.client.sync.models import Job
from service.db.migrate import upgrade
from service.db.session import Database
from service.embedded.bootstrap_token import admin_token
from service.embedded.local_ray import _environment, _free_ports
from tests.support.polling import PATIENCE_SECONDS, until
from tests.support.running_service import spec, write_images
from tests.support.two_nodes import ADDRESSES, Machine, TwoNodes, two_nodes, why_impossible

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("services"), pytest.mark.timeout(1800)]

URL = f"http://{ADDRESSES['head']}:8000"
OUTAGE_SECONDS = 8


@dataclass(frozen=True)
class Cluster:
    """A service on two Ray nodes of one CPU each."""

    machines: TwoNodes
    folder: Path
    env: Mapping[str, str]
    client: Client
    services: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_services(self) -> None:
        """Start API and dispatcher on the head."""
        for name in ("server", "dispatcher"):
            command = [sys.executable, "-m", f"service.{name}"]
            output = self.folder / f"{name}.log"
            self.services.append(self.machines.start("head", command, self.env, output))

    def kill_services(self) -> None:
        """Kill API and dispatcher (SIGKILL)."""
        while self.services:
            process = self.services.pop()
            process.kill()
            process.wait()

    def waits_for_machines(self, job: Job) -> bool:
        """Whether a job is queued because too few nodes are left."""
        messages = [event.message for event in self.client.jobs.events(job.id)]
        return job.refresh().status == "queued" and "more machines" in messages[-1]

    def until_saved(self, job: Job) -> None:
        """Wait until a job has saved a checkpoint further on than those before this call."""

        def newest() -> int:
            assert not (latest := job.refresh()).done, f"{latest.error}\n{self.output()}"
            return max((each.step for each in self.client.jobs.checkpoints(job.id)), default=0)

        before = newest()
        until(lambda: newest() > before or None, f"a checkpoint after step {before}", pause=0.5)

    def output(self) -> str:
        """Return the last lines that each process has printed."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{file.name}:\n{file.read_text()[-4000:]}" for file in files)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two machines with a data set; a test leaves the cable connected and no CPU in use."""
    if reason := why_impossible():
        pytest.skip(reason)
    tmp_path = tmp_path_factory.mktemp("cluster")
    database_url = f"sqlite:///{tmp_path / 'dasl.db'}"
    upgrade(database_url)
    database = Database(database_url)
    token = admin_token(database, tmp_path / "config.toml")
    database.dispose()
    head = ADDRESSES["head"]
    env = _environment(secrets.token_hex(32), _free_ports(9)) | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "DASL_STANDBY_RANKS": "0",
        # A node counts as dead after 17 s without an answer, which is more than the short outage; by default after 62 s.
        "RAY_health_check_failure_threshold": "3",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "5000",
        "DASL_HOME": str(tmp_path / "home"),
        "DASL_DATABASE_URL": database_url,
        "DASL_CACHE_DIR": str(tmp_path / "cache"),
        "DASL_HOST": head,
        "DASL_RAY_ADDRESS": f"http://{head}:8265",
        "DASL_LEASE_SECONDS": "5",
    }
    # A socket's path has at most 107 bytes. Removed after the machines, which write into it until they end.
    # The node sees its own processes and its own content of this folder only: a driver looks there for its Ray.
    with (
        TemporaryDirectory(prefix="dasl-ray-", dir="/tmp") as sockets,
        TemporaryDirectory(prefix="dasl-ray-", dir="/tmp") as of_node,
        two_nodes() as machines,
    ):
        roles: dict[Machine, str] = {
            "head": f"--head --port=6379 --dashboard-host={head} --temp-dir={sockets}",
            "node": f"--address={head}:6379",
        }
        for machine, role in roles.items():
            ray = (
                f"ray start --block --disable-usage-stats --num-cpus=1 --object-store-memory=200000000 "
                f"--node-ip-address={ADDRESSES[machine]} --labels=machine={machine} {role}"
            )
            # A node that has lost the head for too long exits, and is restarted like a container.
            always = f"while true; do {ray}; sleep 1; done"
            command = ["sh", "-c", always]
            if machine == "node":
                own = ["sh", "-c", f"mount --bind {of_node} {sockets}; {always}"]
                command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *own]
            machines.start(machine, command, env, tmp_path / f"{machine}.log")
        with machines.on("head"), Client(URL, token, patience=PATIENCE_SECONDS) as client:
            cluster = Cluster(machines, tmp_path, env, client)
            cluster.start_services()
            until(lambda: len(client.cluster().nodes) == 2 or None, "two nodes", pause=0.5)
            write_images(tmp_path / "images", 88)
            client.datasets.add(tmp_path / "images", "images").wait(timeout=PATIENCE_SECONDS)
            yield cluster


def test_jobs_survive_killed_service_cut_cable_and_drained_node(cluster: Cluster) -> None:
    client, machines, (head, node) = cluster.client, cluster.machines, ADDRESSES.values()
    # They save about once a second, and have more steps than they can take.
    train = {"epochs": 5000, "batch_size": 8, "checkpoint_every_epochs": 10}
    changes = {"train": train, "evaluate": {"every_epochs": 5000}, "checkpoints": {"keep_last": 1}}
    elastic = {"workers": 2, "cpus_per_worker": 1, "min_workers": 1}
    job = client.jobs.submit(spec("images", **changes, resources=elastic))
    cluster.until_saved(job)
    log = client.jobs.logs(job.id)
    assert all(f"is on {address}, cpu" in log for address in ADDRESSES.values()), log
    (placement,) = [each for each in client.jobs.events(job.id) if each.type == "placement"]
    addresses = {each.id: each.address for each in client.cluster().nodes}
    assert addresses[placement.data["driver"]] == node, "the head must not carry each attempt"

    # The next dispatcher adopts what runs.
    cluster.kill_services()
    cluster.start_services()
    cluster.until_saved(job)
    assert (len(client.jobs.attempts(job.id)), job.refresh().restarts) == (1, 0)

    machines.cut()
    time.sleep(OUTAGE_SECONDS)
    machines.mend()
    cluster.until_saved(job)  # in the same attempt, if Ray's connections outlived the outage

    machines.cut()
    until(lambda: cluster.waits_for_machines(job) or None, "a job without a node", pause=0.5)
    machines.mend()
    cluster.until_saved(job)
    *failed, last = client.jobs.attempts(job.id)
    assert (last.workers, {attempt.state for attempt in failed}) == (2, {"failed"})

    client.drain(node, reason="maintenance")
    assert [each.drained for each in client.cluster().nodes if each.address == node] == [True]
    until(lambda: len(client.jobs.attempts(job.id)) > len(failed) + 1 or None, "an attempt")
    # A label chooses the node that was drained; the other one is full.
    chosen = {"node_labels": {"machine": "node"}, "memory_gb_per_worker": 0.1, "same_node": True}
    there = client.jobs.submit(spec("images", **changes, resources={"workers": 1, **chosen}))
    cluster.until_saved(job)
    assert f"rank 0 of 1 is on {head}, cpu" in client.jobs.logs(job.id)
    *_, drained, elastic_one = client.jobs.attempts(job.id)
    assert (drained.state, drained.stop_reason) == ("paused", "drain")
    assert (elastic_one.workers, job.refresh().restarts) == (1, 0)
    first, *later = [each.resume_checkpoint_id for each in client.jobs.attempts(job.id)]
    assert first is None
    assert None not in later, "each attempt resumes from the one before it"
    assert cluster.waits_for_machines(there)
    client.undrain(node)
    placed = f"rank 0 of 1 is on {node}, cpu"
    until(lambda: placed in client.jobs.logs(there.id) or None, "the other job", pause=0.5)
