"""Address of the server and the token to send.

Precedence: arguments, then DASL_URL and DASL_TOKEN, then the file that `dasl serve` and `dasl login` write:
`~/.config/dasl/config.toml` (or below XDG_CONFIG_HOME) with the keys `url` and `token`.
"""

import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from service.client.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8000"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Connection:
    """A server's address without a trailing slash, and the bearer token for it."""

    url: str
    token: str | None = field(repr=False)

    @property
    def is_loopback(self) -> bool:
        return urlsplit(self.url).hostname in _LOOPBACK


def config_path() -> Path:
    """Return the path of the configuration file, which may not exist."""
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(root) / "dasl" / "config.toml"


def resolve_connection(url: str | None = None, token: str | None = None) -> Connection:
    """Determine address and token.

    Raises:
        ConfigError: a value is malformed; the message names its source.
    """
    path = config_path()
    stored = {} if url and token else _read(path)
    source = "the argument `url`" if url else "DASL_URL" if os.environ.get("DASL_URL") else path
    address = url or os.environ.get("DASL_URL") or stored.get("url")
    if token is None:
        token = os.environ.get("DASL_TOKEN")
        # The file's token belongs to the file's address and must not be sent to another server.
        if not token and (address is None or same_server(address, stored.get("url", DEFAULT_URL))):
            token = stored.get("token")
    return Connection(_checked_url(address or DEFAULT_URL, str(source)), _checked_token(token))


def stored_url() -> str | None:
    """Return the address in the configuration file; None if there is no file.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = config_path()
    return _read(path).get("url", DEFAULT_URL).rstrip("/") if path.exists() else None


def write_config(path: Path, url: str, token: str, *, author: str) -> None:
    """Write a configuration file that only its owner can read.

    Args:
        author: the command that writes it.
    """
    # JSON strings are valid TOML strings.
    text = f"# Written by `{author}`.\nurl = {json.dumps(url)}\ntoken = {json.dumps(token)}\n"
    write_private(path, text)


def write_private(path: Path, text: str) -> None:
    """Write a file atomically that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    unfinished.replace(path)


def same_server(first: str, second: str) -> bool:
    """Whether two addresses belong to the same server; all names of this machine are equal."""
    try:
        return _identity(first) == _identity(second)
    except ValueError:  # an invalid port, which is reported elsewhere
        return False


def _identity(url: str) -> tuple[str, str, int | None, str]:
    cleaned = url.strip().rstrip("/").removesuffix("/v1")
    parts = urlsplit(cleaned)
    host = parts.hostname or ""
    port = parts.port or _PORTS.get(parts.scheme)
    return parts.scheme, "localhost" if host in _LOOPBACK else host, port, parts.path


def _read(path: Path) -> dict[str, str]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return {key: value for key, value in content.items() if isinstance(value, str)}


def _checked_url(url: str, source: str) -> str:
    import httpx  # only where a server is asked

    cleaned = url.strip().rstrip("/")
    try:
        parts = httpx.URL(cleaned)
    except httpx.InvalidURL:  # such as a port that is no number
        parts = httpx.URL()
    if parts.scheme not in {"http", "https"} or not parts.host or (parts.port or 0) > 65_535:
        raise ConfigError(
            f"{url[:200]!r} from {source} is not a server address; expected something like {DEFAULT_URL}"
        )
    return cleaned.removesuffix("/v1")


def _checked_token(token: str | None) -> str | None:
    if token is None or not token.strip():
        return None
    cleaned = token.strip()
    if not (cleaned.isascii() and cleaned.isprintable()):
        raise ConfigError("The token contains invalid characters; copy it again.")
    return cleaned
