"""A service, a training, an embedding and an export look up no name and send nothing to another machine."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.two_nodes import why_impossible
from tests.support.watched_network import watched_machine

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1200)]

OWN_NAME = "1.0.0.127.in-addr.arpa"
"""Torch looks for the name of the address of its own sockets, in the form of IPv6, to write it into a log that is off
(torch/csrc/distributed/c10d/socket.cpp). It has no setting for it."""
ROOT = Path(__file__).resolve().parents[2]
ALL = """
import os, subprocess, sys
from pathlib import Path
from service.client import Client
from tests.support.running_service import serving, spec, write_images

folder = Path(sys.argv[1])
write_images(folder / "images", 40)
with serving(folder, folder / "home") as (_, url, token), Client(url, token) as client:
    client.datasets.add(str(folder / "images"), "pictures").wait(timeout=300)
    training = {"epochs": 1, "batch_size": 8}
    job = client.jobs.submit(spec("pictures", train=training)).wait(timeout=600)
    assert job.status == "succeeded", job.error
    for command in ("embed {} --dataset pictures -o v.parquet", "export {} --format onnx -o b.onnx"):
        words = [sys.executable, "-m", "service.cli", *command.format(job.id).split()]
        access = {"DASL_URL": url, "DASL_TOKEN": token, "PYTHONPATH": os.getcwd()}
        subprocess.run(words, env=os.environ | access, cwd=folder, check=True)
"""


def test_nobody_is_called_whom_the_user_did_not_name(tmp_path: Path) -> None:
    """The locked ONNX Runtime asked for its maker's telemetry server in every training."""
    if reason := why_impossible():
        pytest.skip(reason)
    environment = {**os.environ, "HOME": str(tmp_path)}
    with watched_machine() as machine:
        asks = "import socket\ntry: socket.create_connection(('someone.example', 80), 1)\nexcept OSError: pass"
        machine.run([sys.executable, "-c", asks], environment, ROOT, 60)
        assert set(machine.sent()) == {"someone.example"}, "what is sent is recorded"
        command = [sys.executable, "-c", ALL, str(tmp_path)]
        done = machine.run(command, environment, ROOT, 1100)
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(machine.sent()) <= {OWN_NAME}
