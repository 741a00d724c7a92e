"""Settings of the service, read from the environment (prefix `DASL_`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import make_url

from service.log_records import LogFormat


class Settings(BaseSettings):
    """Everything the API and the dispatcher need to know about their surroundings.

    `home` carries the defaults of the embedded service; a deployment sets `database_url` and
    `artifacts_uri` and needs no home. Every field reads the variable `DASL_<FIELD>`.
    """

    model_config = SettingsConfigDict(
        env_prefix="DASL_",
        extra="ignore",
        populate_by_name=True,
        # An error shows what was given to all fields, passwords among it.
        hide_input_in_errors=True,
    )

    home: Path = Field(default_factory=lambda: Path.home() / ".local" / "share" / "dasl")
    database_url: Annotated[str, Field(repr=False)] = ""
    """SQLAlchemy URL: `sqlite:///...` or `postgresql+psycopg://...`; empty: SQLite under home."""
    artifacts_uri: Annotated[str, Field(repr=False)] = ""
    """fsspec URI of the artifacts' root; empty: a folder under home."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_url: str = ""
    """How workers reach this API; empty: `http://{host}:{port}`."""
    ray_address: str = "http://127.0.0.1:8265"
    """Address of Ray's Jobs API."""
    ray_auth_token: SecretStr | None = Field(default=None, validation_alias="RAY_AUTH_TOKEN")
    check_paths: bool = True
    """The API sees the workers' file system: a data set path that does not exist is refused."""
    dataset_roots: Annotated[tuple[Path, ...], NoDecode] = ()
    """Folders that images and pretrained weights may lie in, with `:` between them; empty: any."""
    heartbeat_seconds: Annotated[float, Field(gt=0, le=60)] = 2.0
    lease_seconds: Annotated[float, Field(gt=0)] = 30.0
    """An attempt, or the dispatcher, silent for longer than this is taken to be gone."""
    hang_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """An attempt whose rank 0 says for longer than this that it got no further is taken to hang."""
    cancel_grace_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long an attempt that is cancelled or paused may take to stop at a step before its processes are ended."""
    log_max_bytes: Annotated[int, Field(ge=4096)] = 64 * 1024 * 1024
    """How much of an attempt's log is kept: its beginning and its end, half of it each."""
    log_format: LogFormat = "text"
    """How log records of all processes are written: lines of text, or of JSON."""
    metrics_token: SecretStr | None = None
    """`/metrics` needs this bearer token; none: whoever reaches the API may read it."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 4 * 1024 * 1024
    auth_failures_per_minute: Annotated[int, Field(ge=1)] = 20
    """Failed authentications from one address that are let pass before they are answered with 429."""
    trusted_proxies: str = ""
    """Addresses or networks, with commas, of proxies whose X-Forwarded-For is believed."""
    stream_poll_seconds: Annotated[float, Field(gt=0)] = 0.5
    """How often a live stream (server-sent events) looks for something new."""
    stream_heartbeat_seconds: Annotated[float, Field(gt=0)] = 15.0

    @field_validator("dataset_roots", mode="before")
    @classmethod
    def _split(cls, roots: object) -> object:
        return roots.split(":") if isinstance(roots, str) else roots

    @field_validator("dataset_roots")
    @classmethod
    def _absolute(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        # An empty text too: a deployment whose list got lost must not let everything be read.
        if not all(root.is_absolute() for root in roots):
            raise ValueError("must be absolute paths with ':' between them; unset, any may be read")
        return roots

    @model_validator(mode="after")
    def _derive(self) -> Self:
        home = self.home.expanduser().absolute()
        self.home = home
        if hostile := [mark for mark in ("?", "#", "%", "::") if mark in str(home)]:
            # Database and artifact URLs are made of it, where these mean something else.
            raise ValueError(
                f"home must be a path without {' or '.join(hostile)}; given {str(home)!r}"
            )
        self.database_url = self.database_url or f"sqlite:///{home / 'dasl.db'}"
        if self.artifacts_uri and "://" not in self.artifacts_uri:
            if not Path(self.artifacts_uri).is_absolute():
                raise ValueError(
                    "DASL_ARTIFACTS_URI must be an absolute path, or a URI such as file:///shared/dasl"
                )
            self.artifacts_uri = f"file://{self.artifacts_uri}"
        # Not `Path.as_uri()`: fsspec takes the path of a file URI as it stands, without unquoting.
        self.artifacts_uri = (self.artifacts_uri or f"file://{home}/artifacts").rstrip("/")
        self.api_url = (self.api_url or f"http://{self.host}:{self.port}").rstrip("/")
        self.ray_address = self.ray_address.rstrip("/")
        return self

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must stand in no log."""
        tokens = [self.ray_auth_token, self.metrics_token]
        known = [token.get_secret_value() for token in tokens if token is not None]
        return (*known, make_url(self.database_url).password or "")


def read_settings() -> Settings:
    """The settings of the environment.

    Raises:
        ValueError: names each variable that is wrong, with what it was, unless that may be secret.
    """
    try:
        return Settings()
    except ValidationError as error:
        wrong = []
        for each in error.errors():
            field = str(each["loc"][0]) if each["loc"] else ""
            text = each["msg"].removeprefix("Value error, ")
            known = Settings.model_fields.get(field)
            name = f"DASL_{field.upper()}" if known else field
            given = os.environ.get(name)
            if known is not None and known.repr and given is not None:
                text += f"; given {given!r}"
            wrong.append(f"{name}: {text}" if name else text)
        raise ValueError("; ".join(wrong)) from None
