"""Addresses that webhooks may reach: public ones over https, and others only if the operator lists them.

Otherwise the creator of a webhook could make the service send requests to machines that only the service can reach.
"""

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Sequence[str]]
"""Function that returns the addresses of a host, as text."""

LONGEST_URL = 2000
NOT_PUBLIC = "is not a public address; the operator can list it (DASL_WEBHOOK_ALLOWED_HOSTS)"
# Not public, although some versions of Python's `is_global` say so: metadata services of clouds, and addresses that
# contain IPv4 addresses in a form that this module does not parse.
_NOT_PUBLIC: tuple[IPv4Network | IPv6Network, ...] = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


class Refused(Exception):
    """Webhooks may not reach an address. The message has the reason, but not the resolved address."""


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the order of the system.

    Raises:
        OSError: it has no address.
    """
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def is_public(address: Address) -> bool:
    """Whether an address belongs to a machine in the internet."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _GLOBAL_UNICAST:
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _NOT_PUBLIC)
    )


class AddressGuard:
    """Decides which addresses may be reached.

    Args:
        allowed: names, addresses and networks that need not be public (`DASL_WEBHOOK_ALLOWED_HOSTS`).
    """

    def __init__(self, allowed: Sequence[str], resolver: Resolver = resolve) -> None:
        self._names = frozenset(allowed)
        self._networks = [network for text in allowed if (network := _network(text)) is not None]
        self._resolve = resolver

    def check_url(self, url: str) -> None:
        """Check a URL, without resolving its name.

        Raises:
            Refused: it has another form, or an address that may not be reached.
        """
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise Refused("is not a URL") from error
        if parts.scheme not in ("http", "https") or not host:
            raise Refused("is not an https URL")
        if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
            raise Refused("has characters that a URL cannot have; encode them")
        if len(url) > LONGEST_URL:
            raise Refused(f"is longer than {LONGEST_URL} characters")
        if parts.username is not None or parts.password is not None:
            raise Refused(
                "has a user name or password, which others can read; sign-in is by signature"
            )
        if parts.fragment:
            raise Refused("has a fragment, which is never sent")
        address = _address(host)
        if address is not None and not self._may_reach(address):
            raise Refused(NOT_PUBLIC)
        if host == "localhost" and host not in self._names:
            raise Refused(NOT_PUBLIC)
        is_listed = host in self._names or (address is not None and self._in_networks(address))
        if parts.scheme == "http" and not is_listed:
            raise Refused(
                "uses http; use https, or let the operator list the host (DASL_WEBHOOK_ALLOWED_HOSTS)"
            )

    def addresses(self, host: str, port: int) -> list[str]:
        """Resolve a host and return its addresses, which all may be reached. Connect only to these.

        Raises:
            Refused: one of them may not be reached.
            OSError: the name cannot be resolved.
        """
        texts = list(self._resolve(host, port))
        if not texts:
            raise OSError("the name has no address")
        if host.lower() not in self._names:
            # Refuse a mixture, from which an attacker could select the private address.
            for text in texts:
                address = _address(text)
                if address is None or not self._may_reach(address):
                    raise Refused(NOT_PUBLIC)
        return texts

    def _may_reach(self, address: Address) -> bool:
        return is_public(address) or self._in_networks(address)

    def _in_networks(self, address: Address) -> bool:
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A zone names an interface of this machine.
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return IPv6Address(int(address))
    return address


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text)
    except ValueError:
        return None
