"""`dasl serve`: API, dispatcher and a local Ray in one command, which leaves no process behind.

The API and the dispatcher are threads of this process. Ray runs while there is work, as a child process under a guard
that stops it whenever this process ends. A lock on the home folder allows only one server, so a new start can
immediately take over the attempts of the previous one.
"""

import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType

from service import log_records
from service.embedded.home import held
from service.embedded.local_ray import LocalRay
from service.mounts import network_file_system
from service.server.listener import bind_listener, warn_if_exposed
from service.settings import CURRENT_NODES, Settings, read_settings, warn_of_misspelled_variables

logger = logging.getLogger("dasl.serve")

_CHECK_EVERY_SECONDS = 0.5
# Until the service is ready.
_CHECK_SOON_SECONDS = 0.02


def main(*, open_page: bool = False) -> int:
    """Serve with the settings of the environment until Ctrl-C or SIGTERM; returns the exit status.

    Args:
        open_page: open the page in a browser.
    """
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():  # The second signal exits at once; the subreaper still ends Ray.
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        if " " in sys.executable:
            raise ValueError(
                f"Ray cannot start from a folder with a space in its name; given {sys.executable!r}: "
                "move the installation"
            )
        settings = read_settings()
        log_records.configure(settings.log_format, secrets=settings.secrets)
        warn_of_misspelled_variables()
        serve(settings, stop, open_page=open_page)
    except ValueError as error:
        print(f"dasl serve: {error}", file=sys.stderr)
        return 1
    return 0


def serve(settings: Settings, stop: threading.Event, *, open_page: bool = False) -> None:
    """Run everything until `stop` is set.

    Args:
        open_page: open the page in a browser.

    Raises:
        ValueError: another process serves this home; the home, the port, the database or the artifact
            store cannot be used; or Ray is not installed.
    """
    is_here = settings.database_url.startswith("sqlite")
    if is_here and (network := network_file_system(settings.home)) is not None:
        raise ValueError(f"{settings.home} (DASL_HOME) {network}")
    with held(settings.home), bind_listener(settings) as listener:
        settings = _for_local_ray(settings, listener.getsockname()[1])
        warn_if_exposed(settings)
        ray = LocalRay(settings.home / "ray", settings.home / "logs" / "ray.log")
        _serve(settings, stop, listener, ray, open_page)


def _serve(
    settings: Settings,
    stop: threading.Event,
    listener: socket.socket,
    ray: LocalRay,
    open_page: bool,
) -> None:
    # Imported late, as it takes a second and errors in the settings should be reported first.
    from service.artifacts import free_space
    from service.client.config import config_path, write_config
    from service.db.migrate import upgrade
    from service.db.session import Database
    from service.dispatcher.context import Restarted
    from service.embedded.bootstrap_token import admin_token, choose_config
    from service.embedded.dispatcher_thread import DispatcherThread
    from service.embedded.first_store_check import check_store
    from service.embedded.known_database import check_database, remember_database
    from service.embedded.notices import describe_cluster, describe_unfinished
    from service.embedded.on_demand import RayOnDemand
    from service.embedded.page import show_page
    from service.server.thread import ApiThread
    from service.server.tuning import freeze_garbage_collection, open_more_files

    ray.check_installed()
    check_database(settings)
    upgrade(settings.database_url)
    remember_database(settings)
    check_store(settings.artifacts_uri)
    shortage = free_space.shortage(free_space.DATABASE, settings.database_url)
    if shortage is not None:
        logger.warning("%s", shortage[:1].upper() + shortage[1:])
    database = Database(settings.database_url)
    open_more_files()
    api = ApiThread(settings, database, listener)
    api.start()
    private = settings.home / "client.toml"
    config = choose_config(database, settings.api_url, config_path(), private)
    token = admin_token(database, config)
    write_config(config, settings.api_url, token, author="dasl serve")
    _print_address(settings.api_url, token, config, config_path())
    show_page(database, settings.api_url, token, open_page=open_page)
    on_demand = RayOnDemand(ray, 60 * settings.ray_idle_minutes, api.visited)
    # Jobs that Ray does not know at its first answer ended with the previous service.
    dispatcher = DispatcherThread(settings, database, on_demand, restarted="service")
    dispatcher.start()
    freeze_garbage_collection()
    is_ready = is_described = False
    stuck: str | None = None
    try:
        while not stop.wait(_CHECK_EVERY_SECONDS if is_ready else _CHECK_SOON_SECONDS):
            if not is_ready and dispatcher.in_charge:
                is_ready = True
                print("Ready. Ctrl-C stops everything.", flush=True)
            if not is_described and (cluster := on_demand.first_cluster) is not None:
                is_described = True
                print(f"Ray runs. {describe_cluster(cluster)}", flush=True)
            if not api.is_alive():
                raise RuntimeError("The API ended unexpectedly; the reason is logged above")
            stuck = dispatcher.stuck()
            if stuck is None and (stuck := api.stuck()) is not None:
                # Let trainings save first, as after Ctrl-C: workers' requests have separate threads.
                stop.set()
            if stuck is not None:
                # A stuck thread cannot be ended, and a second dispatcher would share its lease.
                raise RuntimeError(f"{stuck}. The service ends; start it again")
            lost_by: Restarted | None = None if on_demand.first_cluster else "service"
            if on_demand.lost_work.is_set():
                dispatcher.stop()
                lost_by = "ray"
                on_demand.lost_work.clear()
            elif dispatcher.is_alive():
                continue
            else:
                logger.error("The dispatcher ended unexpectedly; restarting it")
            dispatcher = DispatcherThread(settings, database, on_demand, restarted=lost_by)
            dispatcher.start()
    finally:
        seconds = settings.shutdown_seconds if stop.is_set() and on_demand.is_running else 0.0
        saving = f". Running jobs have {seconds:g} s to save; Ctrl-C again stops at once"
        print(f"Stopping{saving if seconds else ''}", flush=True)
        dispatcher.stop(save_seconds=seconds)
        # Stop the API before Ray, so that an interrupted attempt cannot report a failure. The next start resumes it
        # from its last checkpoint.
        api.stop()
        on_demand.close()
        if stuck is None:
            dispatcher.join()
            if (sentence := describe_unfinished(database)) is not None:
                print(sentence, flush=True)
        database.dispose()


def _for_local_ray(settings: Settings, port: int) -> Settings:
    """Return the settings with the actual port, an `api_url` for local workers, and the local cluster."""
    is_set = settings.api_url != f"http://{settings.host}:{settings.port}"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return settings.model_copy(
        update={
            "port": port,
            "api_url": settings.api_url if is_set else url,
            # The local Ray has one node.
            "cluster_limit": settings.cluster_limit or CURRENT_NODES,
        }
    )


def _print_address(url: str, token: str, config: Path, shared: Path) -> None:
    print(f"DASL serves at {url}")
    # Print the token only to a terminal: other output may be a log that others can read.
    where = f"{token} (also in {config})" if sys.stdout.isatty() else f"in {config}"
    print(f"Token: {where}", flush=True)
    if config == shared:
        print("`dasl` finds both automatically.", flush=True)
        return
    print(
        f"{shared} belongs to another server and is not changed. To use this one with `dasl`: "
        f"export DASL_URL={url} DASL_TOKEN=...",
        flush=True,
    )
