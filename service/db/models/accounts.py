"""Tables of tenants, users, tokens, sessions, usage and the audit log."""

from datetime import datetime

from sqlalchemy import BigInteger, Double, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.db.models.base import Base


class Token(Base):
    """An API token; only the hash of its text is stored."""

    __tablename__ = "tokens"
    __table_args__ = (Index(None, "tenant", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[str]]
    # The user whose role limits the token's scopes.
    user_id: Mapped[str | None] = mapped_column(String(40), index=True)
    # Quotas of the jobs submitted and the data sets registered with this token; None: no limit.
    max_queued_jobs: Mapped[int | None]
    max_running_jobs: Mapped[int | None]
    max_gpus: Mapped[int | None]
    max_pending_datasets: Mapped[int | None]
    max_uploaded_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    # Whether a login created it; such tokens are removed long after their expiry.
    from_login: Mapped[bool] = mapped_column(default=False)
    # With a resolution of minutes (`service.api.last_use`).
    last_used_at: Mapped[datetime | None]


class User(Base):
    """A user of a tenant; the identity at a login provider is optional."""

    __tablename__ = "users"
    __table_args__ = (
        Index(None, "tenant", "id"),
        UniqueConstraint("tenant", "issuer", "subject"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    name: Mapped[str] = mapped_column(String(200))
    email: Mapped[str | None] = mapped_column(String(320))
    # The highest scope that its tokens can have.
    role: Mapped[str] = mapped_column(String(20))
    # Who the user is at the login provider (OpenID Connect).
    issuer: Mapped[str | None] = mapped_column(String(500))
    subject: Mapped[str | None] = mapped_column(String(255))
    created_at: Mapped[datetime]
    last_login_at: Mapped[datetime | None]
    # Whether its tokens are refused.
    disabled_at: Mapped[datetime | None]


class Login(Base):
    """A login in progress; removed when it is used or has expired."""

    __tablename__ = "logins"

    # Only hashes of the `state` and of the secret that the client must present.
    state_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    secret_hash: Mapped[str] = mapped_column(String(64))
    nonce: Mapped[str] = mapped_column(String(64))
    code_verifier: Mapped[str] = mapped_column(String(128))
    redirect_uri: Mapped[str] = mapped_column(String(200))
    expires_at: Mapped[datetime] = mapped_column(index=True)
    # Address of the client that started it.
    address: Mapped[str | None] = mapped_column(String(100))


class _OfToken(Base):
    """A secret that stands for a token for a time, and ends with it."""

    __abstract__ = True

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class WebSession(_OfToken):
    """A session of a browser, by the hash of its cookie."""

    __tablename__ = "web_sessions"


class LoginCode(_OfToken):
    """A code that starts one session; removed when it is used or has expired."""

    __tablename__ = "login_codes"


class Tenant(Base):
    """A team: its share of the cluster and its limits. A tenant without a row has the defaults."""

    __tablename__ = "tenants"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    # Share of the cluster, relative to other tenants.
    weight: Mapped[float] = mapped_column(Double, default=1.0)
    # Quotas of all its jobs together, and limits on each job; None: no limit.
    max_queued_jobs: Mapped[int | None]
    max_running_jobs: Mapped[int | None]
    max_gpus: Mapped[int | None]
    max_priority: Mapped[int | None]
    max_hours: Mapped[float | None] = mapped_column(Double)
    max_uploaded_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    # Whether its tokens are refused.
    disabled_at: Mapped[datetime | None]


class Usage(Base):
    """Use of the cluster by one job in one hour. It stays when the job is deleted."""

    __tablename__ = "usage"
    __table_args__ = (Index(None, "hour", "tenant", "token_id"), Index(None, "tenant", "hour"))

    job_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(String(100))
    token_id: Mapped[str | None] = mapped_column(String(40))
    # Copied from the job.
    account_id: Mapped[str] = mapped_column(String(40))
    tags: Mapped[dict[str, str]]
    gpu_seconds: Mapped[float] = mapped_column(Double)
    cpu_seconds: Mapped[float] = mapped_column(Double)


class AuditEntry(Base):
    """A request that changed something or was forbidden: its caller, action, time and address."""

    __tablename__ = "audit_entries"
    __table_args__ = (Index(None, "tenant", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    at: Mapped[datetime]
    tenant: Mapped[str] = mapped_column(String(100))
    token_id: Mapped[str] = mapped_column(String(40))
    # The user of the token, stored because the token may be removed.
    user_id: Mapped[str | None] = mapped_column(String(40))
    method: Mapped[str] = mapped_column(String(10))
    path: Mapped[str] = mapped_column(Text)
    status: Mapped[int]
    address: Mapped[str | None] = mapped_column(String(100))
