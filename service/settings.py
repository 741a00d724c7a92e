"""Settings of the service, read from the environment (prefix `DASL_`)."""

import logging
import os
import re
from datetime import timedelta
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import make_url

from dasl_core.spec.locations import ReadableFolders
from dasl_core.spec.source import remote_scheme
from dasl_core.spec.track import host_problem
from service.credentials import SCOPES, Scope
from service.log_records import LogFormat

logger = logging.getLogger(__name__)

# Of workers, the client, and the compose file.
_OTHER_VARIABLES = frozenset(
    {
        *("DASL_CACHE_DIR", "DASL_CACHE_MAX_BYTES", "DASL_SCRATCH_DIR", "DASL_SHARDS_URI"),
        "DASL_KEEP_CACHE_DAYS",
        *("DASL_STANDBY_RANKS", "DASL_TASK_MEMORY_GB"),
        *("DASL_SUBMISSION", "DASL_TENANT", "DASL_TOKEN", "DASL_URL", "DASL_WORKER_TOKEN"),
        *("DASL_CPUS", "DASL_CPU_WORKERS", "DASL_DATA", "DASL_GRAFANA_PASSWORD"),
        *("DASL_GRAFANA_PORT", "DASL_HEAD_MEMORY", "DASL_POSTGRES_PASSWORD"),
        *("DASL_SERVER_MEMORY", "DASL_WORKER_MEMORY"),
    }
)
# Below it, a name may well be another program's: Kubernetes sets DASL_API_PORT beside our DASL_API_URL.
_SIMILARITY = 0.85


class NodeShape(NamedTuple):
    """A number of equal nodes."""

    nodes: int
    cpus: int
    gpus: int


CURRENT_NODES: Literal["current"] = "current"
ClusterLimit = tuple[NodeShape, ...] | Literal["current"] | None
"""The largest cluster: `CURRENT_NODES`: that of now; `None`: unknown."""
Days = Annotated[float | None, Field(gt=0, le=36_500)]
_ENDPOINT = re.compile(r"https?://[^/\s@?#]+/?")
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_NODE_SHAPE = re.compile(r"(\d{1,4})x(\d{1,6})(?::(\d{1,6}))?")


def _split_at(separator: str | None) -> BeforeValidator:
    """Split the value of a variable; `None`: at spaces."""
    return BeforeValidator(
        lambda value: value.split(separator) if isinstance(value, str) else value
    )


class Settings(BaseSettings):
    """Settings of the API and the dispatcher; each field reads the variable `DASL_<FIELD>`.

    The embedded service keeps its data in `home`; a deployment sets `database_url` and `artifacts_uri`
    and needs no home.
    """

    model_config = SettingsConfigDict(
        env_prefix="DASL_",
        extra="ignore",
        populate_by_name=True,
        # Errors would otherwise show the values of all fields, passwords included.
        hide_input_in_errors=True,
    )

    home: Path = Field(default_factory=lambda: Path.home() / ".local" / "share" / "dasl")
    database_url: Annotated[str, Field(repr=False)] = ""
    """SQLAlchemy URL: `sqlite:///...` or `postgresql+psycopg://...`; empty: SQLite under home."""
    artifacts_uri: Annotated[str, Field(repr=False)] = ""
    """fsspec URI of the artifacts' root; empty: a folder under home."""
    aws_secret_access_key: SecretStr | None = Field(
        default=None, validation_alias="AWS_SECRET_ACCESS_KEY"
    )
    aws_session_token: SecretStr | None = Field(default=None, validation_alias="AWS_SESSION_TOKEN")
    presigned_downloads: bool = False
    """Whether clients download files directly from the object store, with signed URLs."""
    s3_public_endpoint: str = ""
    """Where clients reach the object store; empty: at AWS_ENDPOINT_URL, or at AWS."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_url: str = ""
    """How workers reach this API; empty: `http://{host}:{port}`."""
    ray_address: str = "http://127.0.0.1:8265"
    """Address of Ray's Jobs API."""
    ray_auth_token: SecretStr | None = Field(default=None, validation_alias="RAY_AUTH_TOKEN")
    ray_idle_minutes: Annotated[float, Field(ge=0, le=100_000)] = 60.0
    """The Ray of `dasl serve` ends after this long without work; 0: it starts with the service, and stays."""
    autoscale: bool = False
    """Show the demand of waiting jobs to Ray's autoscaler."""
    cluster_limit: Annotated[ClusterLimit, NoDecode] = None
    """The largest cluster that Ray may have: jobs that do not fit on it are refused."""
    check_paths: bool = True
    """Whether the API sees the workers' file system and refuses paths that do not exist."""
    dataset_roots: Annotated[tuple[Path, ...], NoDecode, _split_at(":")] = ()
    """Folders that may hold images and pretrained weights, separated by `:`; empty: any folder."""
    tenant_roots: Annotated[dict[str, tuple[Path, ...]], NoDecode] = {}
    """Folders that only one tenant may read from: `TENANT=FOLDER:FOLDER`, separated by `;`."""
    dataset_uris: Annotated[tuple[str, ...] | None, NoDecode, _split_at(None)] = None
    """Prefixes of object stores that may hold images, such as `s3://bucket/images`, separated by spaces; unset: any if
    `dataset_roots` and `tenant_roots` are unset, else none."""
    tracking_hosts: Annotated[tuple[str, ...] | None, NoDecode, _split_at(None)] = None
    """Hosts of MLflow servers that jobs may log to, each HOST or HOST:PORT, separated by spaces; unset: any if
    `dataset_roots` and `tenant_roots` are unset, else none."""
    heartbeat_seconds: Annotated[float, Field(gt=0, le=60)] = 2.0
    lease_seconds: Annotated[float, Field(gt=0, le=600)] = 30.0
    """An attempt or a dispatcher without a heartbeat for this long is considered dead."""
    runs_at_once: Annotated[int, Field(ge=1, le=1000)] = 3
    """Most runs of each other kind at the same time: ingests, previews, preparations, runs of models, searches. One tenant
    has at most one fewer."""
    start_seconds: Annotated[float, Field(gt=0)] = 900.0
    """If the driver of an attempt has not reported after this long, the attempt is ended and retried."""
    preemption: Literal["off", "low", "priority"] = "low"
    """Which running jobs give way to a job that lacks room: none, preemptible ones, or also those of lower priority."""
    fair_share_half_life_hours: Annotated[float, Field(gt=0, le=8760)] = 24.0
    """After this long, use of the cluster counts half in the fair share."""
    hang_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """If rank 0, or an ingest, reports no progress for this long, the run is killed and restarted."""
    stuck_seconds: Annotated[float, Field(ge=60)] = 900.0
    """A dispatcher or an API that makes no progress for this long ends itself, to be started again."""
    cancel_grace_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long a cancelled or paused attempt may be heard without progress before its processes are killed."""
    cancel_max_seconds: Annotated[float, Field(gt=0)] = 900.0
    """How long a cancelled or paused attempt may take to stop, even if it shows progress."""
    shutdown_seconds: Annotated[float, Field(ge=0)] = 60.0
    """How long running attempts may take to save a checkpoint when the service is stopped."""
    log_max_bytes: Annotated[int, Field(ge=4096)] = 64 * 1024 * 1024
    """Maximum size of an attempt's stored log: half for its beginning, half for its end."""
    log_format: LogFormat = "text"
    """Format of the log records of all processes: lines of text or of JSON."""
    keep_jobs_days: Days = None
    """Failed and cancelled jobs are deleted this long after their end; unset: kept."""
    keep_checkpoints_days: Days = 30.0
    """Checkpoints other than the final, newest, best and pinned ones are removed this long after the end of their
    job; unset: kept."""
    keep_artifacts_days: Days = None
    """Artifacts, and checkpoints other than the final, newest, best and pinned ones, are removed this long after
    the end of their job; unset: kept."""
    keep_metrics_days: Days = None
    """Metrics are removed this long after the end of their job; unset: kept. Evaluations stay."""
    keep_logs_days: Days = None
    """Logs are removed this long after the end of their job; unset: kept."""
    max_artifact_bytes: Annotated[int | None, Field(gt=0)] = None
    """If checkpoints, artifacts and previews take more, previews are removed, and then those of ended jobs as after
    `keep_artifacts_days`, what ended earliest first; unset: no limit."""
    keep_previews_days: Annotated[float, Field(gt=0, le=36_500)] = 7.0
    """Previews are removed this long after their end."""
    max_upload_bytes: Annotated[int, Field(gt=0)] = 200 * 1000**3
    """Size limit of the file of an upload."""
    keep_uploads_days: Annotated[float, Field(gt=0, le=36_500)] = 7.0
    """An unfinished upload is deleted this long after its last chunk."""
    metrics_token: SecretStr | None = None
    """Bearer token that `/metrics` requires; unset: `/metrics` needs no token."""
    oidc_issuer: str = ""
    """Issuer of the OpenID Connect provider where people log in; empty: there is no login."""
    oidc_client_id: str = ""
    oidc_client_secret: SecretStr | None = None
    """Secret of a confidential client; unset: a public client, which PKCE protects."""
    oidc_scopes: str = "openid profile email"
    oidc_tenant: Annotated[str, Field(min_length=1, max_length=100)] = "default"
    """Tenant of the people who log in, unless a claim names it."""
    oidc_tenant_claim: str = ""
    """Claim of the ID token with the name of the tenant."""
    oidc_role: Scope | Literal[""] = "submit"
    """Role of people whom `oidc_roles` gives none; empty: they are refused."""
    oidc_role_claim: str = ""
    """Claim of the ID token with the groups of a person, a string or a list."""
    oidc_roles: Annotated[dict[str, Scope], NoDecode] = {}
    """Roles of groups: `GROUP=ROLE`, separated by `;`; of several, the highest counts."""
    oidc_token_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 12.0
    """How long the token of a login is valid."""
    session_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 168.0
    """How long a session of the page lasts, unless its token ends sooner."""
    public_url: str = ""
    """Where people reach the service: links of notifications begin with it; empty: `api_url`."""
    webhook_allowed_hosts: Annotated[tuple[str, ...], NoDecode, _split_at(",")] = ()
    """Names, addresses and networks, separated by commas, that webhooks may reach although they are not public,
    also over http; empty: public addresses over https only."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 4 * 1024 * 1024
    statement_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Time limit of a database statement that reads for an API request."""
    auth_failures_per_minute: Annotated[int, Field(ge=1)] = 20
    """Failed authentications per address and minute before further ones are answered with 429."""
    trusted_proxies: str = ""
    """Proxies whose X-Forwarded-For is trusted: addresses or networks, separated by commas."""
    stream_poll_seconds: Annotated[float, Field(gt=0)] = 0.5
    """Interval at which a live stream (server-sent events) polls the database."""
    stream_heartbeat_seconds: Annotated[float, Field(gt=0)] = 15.0

    @field_validator("cluster_limit", mode="before")
    @classmethod
    def _parse_shapes(cls, limit: object) -> object:
        if not isinstance(limit, str) or limit == CURRENT_NODES:
            return limit
        if not limit:
            return None
        shapes = [_NODE_SHAPE.fullmatch(shape.strip()) for shape in limit.split(",")]
        if not all(shapes):
            raise ValueError(
                "must be 'current', or nodes as COUNTxCPUS:GPUS separated by commas, such as "
                "8x64:8,2x32 for 8 nodes with 64 CPUs and 8 GPUs each and 2 nodes with 32 CPUs"
            )
        return tuple(NodeShape(*(int(n or 0) for n in shape.groups())) for shape in shapes if shape)

    @field_validator("dataset_roots")
    @classmethod
    def _absolute(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        # An empty string is refused too: a deployment that lost its list must not allow every folder.
        if not all(root.is_absolute() for root in roots):
            raise ValueError(
                "must be absolute paths separated by ':'; leave it unset to allow every folder"
            )
        return roots

    @field_validator("tracking_hosts")
    @classmethod
    def _hosts(cls, hosts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for host in hosts or ():
            if (reason := host_problem(host)) is not None:
                raise ValueError(
                    f"must be HOST or HOST:PORT, separated by spaces; {host!r} {reason}"
                )
        return hosts

    @field_validator("dataset_uris")
    @classmethod
    def _known_schemes(cls, uris: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for uri in uris or ():
            if remote_scheme(uri) is None:
                raise ValueError(
                    f"must be URIs such as s3://bucket/folder, separated by spaces; {uri!r} is none"
                )
        return uris

    @field_validator("webhook_allowed_hosts")
    @classmethod
    def _only_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        hosts = tuple(filter(None, (host.strip().lower() for host in hosts)))
        for host in hosts:
            if _HOST.fullmatch(host) is None and not _is_network(host):
                raise ValueError(
                    "must be host names, addresses and networks, separated by commas, such as "
                    f"hooks.internal,10.1.0.0/16; {host!r} is none"
                )
        return hosts

    @field_validator("tenant_roots", mode="before")
    @classmethod
    def _split_tenants(cls, text: object) -> object:
        if not isinstance(text, str):
            return text
        if not text.strip():  # a compose file passes an empty value on
            return {}
        pairs = [pair.partition("=")[::2] for pair in text.split(";")]
        roots = {tenant.strip(): folders.strip().split(":") for tenant, folders in pairs}
        if len(roots) < len(pairs) or not all(
            tenant and all(map(os.path.isabs, folders)) for tenant, folders in roots.items()
        ):
            raise ValueError(
                "must name each tenant once, with absolute paths: TENANT=FOLDER:FOLDER;TENANT=FOLDER"
            )
        return roots

    @field_validator("oidc_roles", mode="before")
    @classmethod
    def _split_roles(cls, text: object) -> object:
        if not isinstance(text, str):
            return text
        if not text.strip():  # a compose file passes an empty value on
            return {}
        # Names of groups may contain "=", as those of LDAP do.
        pairs = [pair.rpartition("=")[::2] for pair in text.split(";")]
        roles = {group.strip(): role.strip() for group, role in pairs}
        if not all(group and role in SCOPES for group, role in roles.items()):
            raise ValueError(f"must be GROUP=ROLE;GROUP=ROLE with the roles {', '.join(SCOPES)}")
        return roles

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if self.oidc_issuer and not is_secure(self.oidc_issuer):
            raise ValueError("DASL_OIDC_ISSUER must be an https address")
        if self.oidc_issuer and not self.oidc_client_id:
            raise ValueError("DASL_OIDC_ISSUER needs DASL_OIDC_CLIENT_ID, the id of this client")
        if self.oidc_roles and not self.oidc_role_claim:
            raise ValueError("DASL_OIDC_ROLES has no effect without DASL_OIDC_ROLE_CLAIM")
        if "openid" not in self.oidc_scopes.split():
            raise ValueError("DASL_OIDC_SCOPES must contain 'openid'")
        return self

    @model_validator(mode="after")
    def _derive(self) -> Self:
        home = self.home.expanduser().absolute()
        self.home = home
        if reserved := [mark for mark in ("?", "#", "%", "::") if mark in str(home)]:
            # The path becomes part of the database and artifact URLs, where these have a meaning.
            raise ValueError(
                f"home must be a path without {' or '.join(reserved)}; given {str(home)!r}"
            )
        self.database_url = self.database_url or f"sqlite:///{home / 'dasl.db'}"
        if self.artifacts_uri and "://" not in self.artifacts_uri:
            if not Path(self.artifacts_uri).is_absolute():
                raise ValueError(
                    "DASL_ARTIFACTS_URI must be an absolute path, or a URI such as file:///shared/dasl"
                )
            self.artifacts_uri = f"file://{self.artifacts_uri}"
        # Not `Path.as_uri()`: fsspec does not unquote the path of a file URI.
        self.artifacts_uri = (self.artifacts_uri or f"file://{home}/artifacts").rstrip("/")
        if self.presigned_downloads and not self.artifacts_uri.startswith("s3://"):
            raise ValueError(
                "DASL_PRESIGNED_DOWNLOADS needs an object store: set DASL_ARTIFACTS_URI to s3://BUCKET/FOLDER"
            )
        if self.s3_public_endpoint and not _ENDPOINT.fullmatch(self.s3_public_endpoint):
            raise ValueError(
                "DASL_S3_PUBLIC_ENDPOINT must be a URL such as https://s3.example.org; "
                f"given {self.s3_public_endpoint!r}"
            )
        if self.cancel_grace_seconds <= 2 * self.heartbeat_seconds:
            # Attempts hear of a request with a heartbeat, and show progress with the next one.
            raise ValueError(
                "DASL_CANCEL_GRACE_SECONDS must be more than twice DASL_HEARTBEAT_SECONDS; given "
                f"{self.cancel_grace_seconds:g} and {self.heartbeat_seconds:g}"
            )
        if "cancel_max_seconds" not in self.model_fields_set:
            self.cancel_max_seconds = max(self.cancel_max_seconds, self.cancel_grace_seconds)
        if self.cancel_max_seconds < self.cancel_grace_seconds:
            raise ValueError(
                "DASL_CANCEL_MAX_SECONDS must not be less than DASL_CANCEL_GRACE_SECONDS; given "
                f"{self.cancel_max_seconds:g} and {self.cancel_grace_seconds:g}"
            )
        self.api_url = (self.api_url or f"http://{self.host}:{self.port}").rstrip("/")
        self.public_url = (self.public_url or self.api_url).rstrip("/")
        self.ray_address = self.ray_address.rstrip("/")
        return self

    def readable_folders(self, tenant: str) -> ReadableFolders:
        """Return the folders from which a tenant's images and pretrained weights may be read.

        The service's own folders hold the images and weights of all tenants.
        """
        own = self.tenant_roots.get(tenant, ())
        # A folder of two tenants is no other tenant's.
        others = {root for roots in self.tenant_roots.values() for root in roots} - {*own}
        private, private_uris = [self.home], []
        if self.artifacts_uri.startswith("file://"):
            private.append(Path(self.artifacts_uri.removeprefix("file://")))
        else:
            private_uris.append(self.artifacts_uri)
        uris = self.dataset_uris
        if uris is None and (self.dataset_roots or self.tenant_roots):
            uris = ()
        shared = self.dataset_roots or ((Path("/"),) if own else ())
        return ReadableFolders(
            (*shared, *own),
            (*private, *sorted(others)),
            self.check_paths,
            uris=uris,
            excluded_uris=private_uris,
        )

    @property
    def allowed_tracking_hosts(self) -> list[str] | None:
        """The only hosts of trackers that workers may contact; None: any."""
        if self.tracking_hosts is not None:
            return [*self.tracking_hosts]
        return [] if self.dataset_roots or self.tenant_roots else None

    @property
    def fair_share_half_life(self) -> timedelta:
        """`fair_share_half_life_hours` as a duration."""
        return timedelta(hours=self.fair_share_half_life_hours)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must never appear in a log."""
        values = [v.get_secret_value() for _, v in self if isinstance(v, SecretStr)]
        return (*values, make_url(self.database_url).password or "")


def is_secure(address: str) -> bool:
    """Whether an address uses TLS, or is on this machine's loopback."""
    parts = urlsplit(address)
    local = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1"}
    return bool(parts.hostname) and (parts.scheme == "https" or local)


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def warn_of_misspelled_variables() -> None:
    """Log each variable of the environment that no setting reads, if its name resembles that of one."""
    known = {f"DASL_{field.upper()}" for field in Settings.model_fields} | _OTHER_VARIABLES
    for name in sorted(os.environ.keys() - known):
        if name.startswith("DASL_") and (meant := get_close_matches(name, known, 1, _SIMILARITY)):
            logger.warning("%s: unknown setting, ignored. Did you mean %s?", name, meant[0])


def read_settings() -> Settings:
    """Read the settings from the environment.

    Raises:
        ValueError: names each invalid variable, with its value unless it may be secret.
    """
    try:
        return Settings()
    except ValidationError as error:
        messages = []
        for problem in error.errors():
            field = str(problem["loc"][0]) if problem["loc"] else ""
            message = problem["msg"].removeprefix("Value error, ")
            setting = Settings.model_fields.get(field)
            variable = f"DASL_{field.upper()}" if setting else field
            value = os.environ.get(variable)
            if setting is not None and setting.repr and value is not None:
                message += f"; given {value!r}"
            messages.append(f"{variable}: {message}" if variable else message)
        raise ValueError("; ".join(messages)) from None
