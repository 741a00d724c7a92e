"""The socket that the API listens on, and warnings about who can reach it."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from service.settings import Settings

logger = logging.getLogger("dasl.serve")


@contextmanager
def bind_listener(settings: Settings) -> Iterator[socket.socket]:
    """Bind a socket to the configured address, and close it at the end of the block.

    Raises:
        ValueError: the port is taken, or the address does not exist.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Pass the protocol, so that asyncio sets TCP_NODELAY. Without it a body waits, often 40 ms, until its headers are
    # acknowledged.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise ValueError(
                f"Cannot listen on {settings.host} port {settings.port} ({error.strerror}); set "
                "DASL_PORT to another one, or to 0 for any that is free"
            ) from error
        yield listener


def warn_if_exposed(settings: Settings) -> None:
    """Log warnings about the access of other machines, if they can reach the port."""
    if _is_loopback(settings.host):
        return
    logger.warning(
        "Listening on %s, beyond this machine's loopback: tokens travel unencrypted. Put a proxy "
        "with TLS in front of it",
        settings.host,
    )
    if not settings.dataset_roots:
        logger.warning(
            "DASL_DATASET_ROOTS is not set: every client that may submit can read every folder that "
            "this user can read"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
