"""A private Ray on this machine's loopback, with its own ports and token; it is never orphaned."""

import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

logger = logging.getLogger("dasl.serve")

# Training does not use the object store, and /dev/shm may be small.
_OBJECT_STORE_BYTES = 200_000_000
# A Unix socket's path has at most 107 bytes; Ray adds up to 71 for its session and socket.
_MAX_FOLDER_BYTES = 36
# Of the folders of Ray with a shorter path. Not TMPDIR, which may be long as well.
_TEMPORARY, _PREFIX = Path("/tmp"), "dasl-ray-"
_GRACE_SECONDS = 2.0
# Standby processes use about 1 GB, which jobs may need if there is less memory than this.
_STANDBY_MIN_BYTES = 4 * 10**9
_NO_RAY = 'Ray is not installed here; in a checkout of DASL: pip install ".[server,training]"'
# Variables that workers inherit; the dispatcher passes everything else to each job.
_WORKER_FOLDERS = ("DASL_CACHE_DIR", "DASL_SCRATCH_DIR")
_WORKER_VARIABLES = (
    *_WORKER_FOLDERS,
    "DASL_CACHE_MAX_BYTES",
    "DASL_KEEP_CACHE_DAYS",
    "DASL_SHARDS_URI",
    "DASL_STANDBY_RANKS",
    "DASL_TASK_MEMORY_GB",
)


class LocalRay:
    """A Ray head node under a subreaper process, which can be restarted.

    Args:
        folder: folder for the files of Ray's current session, such as its logs.
        log: receives the output of `ray start`. Ray's working directory is its folder, which no other
            user may write to.
        cpus: number of CPUs that Ray offers; `None`: all of the machine. Ray detects GPUs.
    """

    def __init__(self, folder: Path, log: Path, cpus: int | None = None) -> None:
        self.log = log
        self.token = secrets.token_hex(32)
        self._folder, self._cpus = folder, cpus
        self._needed = log.with_name("ray-needed")
        self._guard: subprocess.Popen[bytes] | None = None
        self.address = ""

    def check_installed(self) -> None:
        """Check that Ray can be started.

        Raises:
            ValueError: it is not installed in this Python environment.
        """
        if find_spec("ray") is None:
            raise ValueError(_NO_RAY)

    def start(self) -> None:
        """Start Ray, which answers at `address` after about ten seconds."""
        assert self._guard is None, "Ray is running already"
        folder = _empty_folder(self._folder)
        ports = _free_ports(9)
        self.address = f"http://127.0.0.1:{ports[0]}"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.show_need()
        guard = [sys.executable, "-P", "-m", "service.embedded.subreaper", str(_GRACE_SECONDS)]
        with self.log.open("ab") as output:
            self._guard = subprocess.Popen(
                [*guard, *_command(self._needed, folder, ports, self._cpus)],
                # This process has the only writing end, which closes whenever the process ends.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(self.token, ports),
                # Python imports from the working directory first, so it must be neither the directory that the
                # service was started in, nor Ray's folder, which is world-readable and -writable.
                cwd=self.log.parent,
                # Ctrl-C in a terminal reaches only `dasl serve`, which then stops the rest in order.
                start_new_session=True,
            )

    def show_need(self) -> None:
        """Let Ray keep standby processes for some minutes, because work may come."""
        try:
            self._needed.parent.mkdir(parents=True, exist_ok=True)
            self._needed.touch()
        except OSError as error:
            logger.warning("Jobs start without standby processes: %s", error)

    @property
    def running(self) -> bool:
        """Whether `workers.local_head` still runs; it ends when any part of Ray does."""
        return self._guard is not None and self._guard.poll() is None

    def begin_stop(self) -> None:
        """Stop Ray, which is `running` until all its processes have ended."""
        assert self._guard is not None, "Ray does not run"
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    def stop(self) -> None:
        """Stop Ray and wait until all its processes have ended."""
        if self._guard is None:
            return
        self.begin_stop()
        self._guard.wait()
        self._guard = None
        _remove_link(self._folder)


def _remove_link(folder: Path) -> None:
    """Remove a link, and the temporary folder behind it if `_empty_folder` made them."""
    if folder.is_symlink():
        private = folder.readlink().parent
        # A person may have put Ray's files on another disk, among other files.
        if private.parent == _TEMPORARY and private.name.startswith(_PREFIX):
            shutil.rmtree(private, ignore_errors=True)
        folder.unlink()


def _empty_folder(folder: Path) -> Path:
    """Remove the files of the last session and return the folder for the next one.

    It is `folder` itself or, if that path is too long for a socket, a temporary folder that `folder`
    becomes a link to. The temporary folder is removed when Ray stops, `folder` at the next start.
    """
    _remove_link(folder)
    shutil.rmtree(folder, ignore_errors=True)
    # Ray also refuses every job if its folder's path has a space or a non-ASCII letter.
    plain = str(folder).isascii() and " " not in str(folder)
    if plain and len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES:
        return folder
    # Ray makes its folder accessible to all users, so it lies inside a private one, as in the home folder.
    private = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_TEMPORARY))
    temporary = private / "ray"
    try:
        temporary.mkdir()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(temporary)
    except OSError:  # Starts are repeated, and each would leave a folder.
        shutil.rmtree(private, ignore_errors=True)
        raise
    return temporary


def _command(needed: Path, folder: Path, ports: list[int], cpus: int | None) -> list[str]:
    options = {
        "node-ip-address": "127.0.0.1",
        "dashboard-host": "127.0.0.1",
        "dashboard-port": ports[0],
        "port": ports[1],
        "dashboard-agent-listen-port": ports[2],
        "dashboard-agent-grpc-port": ports[3],
        "metrics-export-port": ports[4],
        "runtime-env-agent-port": ports[5],
        "ray-client-server-port": ports[6],
        "temp-dir": folder,
        "object-store-memory": _OBJECT_STORE_BYTES,
        # The dashboard and its agent serve the Jobs API. The log monitor brings the workers' output
        # to their drivers.
        "include-dashboard": "true",
        **({} if cpus is None else {"num-cpus": cpus}),
    }
    return [
        *(sys.executable, "-P", "-m", "workers.local_head", str(needed)),
        *("--head", "--disable-usage-stats", "--log-style=record"),
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def default_standby_ranks(available_bytes: int) -> int:
    """Return the number of standby ranks for a machine with this much available memory."""
    # A second rank would cost a laptop another 0.7 GB.
    return 1 if available_bytes >= _STANDBY_MIN_BYTES else 0


def _environment(token: str, ports: list[int]) -> dict[str, str]:
    # Remove settings for another Ray, and the service's settings, which include passwords.
    excluded = ("RAY_ADDRESS", "DASL_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(excluded)}
    environment |= {name: os.environ[name] for name in _WORKER_VARIABLES if name in os.environ}
    for name in _WORKER_FOLDERS:
        if folder := environment.get(name):
            # Ray has another working directory.
            environment[name] = os.path.abspath(folder)
    try:
        import psutil
    except ModuleNotFoundError as error:  # it comes with Ray
        raise ValueError(_NO_RAY) from error
    available = psutil.virtual_memory().available
    environment.setdefault("DASL_STANDBY_RANKS", str(default_standby_ranks(available)))
    return environment | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Despite its name, this keeps every part of Ray on 127.0.0.1: without it Ray replaces a
        # loopback address by the machine's own and listens on all interfaces.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Two ports that would otherwise be the same for every Ray on the machine.
        "AUTOSCALER_METRIC_PORT": str(ports[7]),
        "DASHBOARD_METRIC_PORT": str(ports[8]),
        # By default Ray starts one idle worker per CPU at its start and at the start of each job. Jobs cannot use
        # them, because jobs have environment variables (`workers.standby`).
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        # Standby processes end when their time is over; by default Ray keeps one idle worker per CPU.
        "RAY_num_workers_soft_limit": "0",
        # Less work while nothing runs; nobody reads Ray's own metrics and statistics of this node.
        "LOG_NAME_UPDATE_INTERVAL_S": "2",
        "METRICS_RECORD_INTERVAL_S": "60",
        "NODE_STATS_UPDATE_INTERVAL_SECONDS": "60",
        "REPORTER_UPDATE_INTERVAL_MS": "30000",
        "RAY_debug_dump_period_milliseconds": "0",
        "RAY_enable_metrics_collection": "0",
        "RAY_event_stats": "0",
        "RAY_health_check_period_ms": "10000",
        "RAY_kill_idle_workers_interval_ms": "1000",
        "RAY_memory_monitor_refresh_ms": "1000",
        "RAY_metrics_report_interval_ms": "60000",
        "RAY_raylet_check_gc_period_milliseconds": "1000",
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [int(bound.getsockname()[1]) for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()
