"""A real S3 server (SeaweedFS) on loopback, which tests can kill and restart."""

import json
import random
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from service import object_store
from tests.support.polling import until

SECRET = "secret-key-of-the-tests"
BUCKET = "dasl"


class S3Server:
    """A server process with one bucket; its data outlives a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, *others = _free_ports(8)
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "dasl",
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        identity = {
            "name": "dasl",
            "credentials": [{"accessKey": "dasl", "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = dict(zip(("master", "volume", "filer"), others[:3], strict=True))
        grpc = dict(zip(("master", "volume", "filer", "s3"), others[3:], strict=True))
        self._command = [
            str(Path(sys.executable).with_name("weed")),
            *("server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"),
            *(f"-{name}.port={port}" for name, port in ports.items()),
            *(f"-{name}.port.grpc={port}" for name, port in grpc.items()),
            *(
                f"-s3.port={self._port}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                f"-s3.config={folder / 's3.json'}",
            ),
            # A missing bucket is an error, as on AWS.
            *("-s3.autoCreateBucket=false", "-volume.max=0", "-volume.preStopSeconds=0"),
            # A single master elects itself after its restart; by default it waits 10 s for another one.
            "-master.electionTimeout=1s",
            *("-master.volumeSizeLimitMB=64", "-master.telemetry=false", "-metricsPort=0"),
        ]

    def start(self) -> None:
        """Start the process and wait until the bucket is there."""
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(self._create_bucket, "the S3 server", pause=0.1)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _create_bucket(self) -> bool | None:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "weed.log").read_text()[-2000:]
        store = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id="dasl",
            secret_access_key=SECRET,
            client_options={"allow_http": True},
        )
        url = obstore.sign(store, "PUT", "", timedelta(minutes=1))
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:  # It exists.
                return None
        except OSError:
            return None
        return True


def _free_ports(count: int) -> list[int]:
    """Return ports below those that the kernel gives to connections, which a restart would not get back."""
    ports: list[int] = []
    for port in random.sample(range(20_000, 32_000), 500):
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError("no free ports")


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server whose files are in `folder`."""
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for the S3 clients of this process."""
    object_store._store.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
    object_store._store.cache_clear()
