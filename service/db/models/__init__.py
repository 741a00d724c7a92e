"""The database tables. A schema validates all JSON columns before they are stored."""

from service.db.models.accounts import (
    AuditEntry,
    Login,
    LoginCode,
    Tenant,
    Token,
    Usage,
    User,
    WebSession,
)
from service.db.models.base import Base, UtcDateTime
from service.db.models.cluster import (
    CHECKPOINT_SWEEP,
    ClusterSnapshot,
    Drain,
    Lease,
    QueueDecisions,
    Sweep,
)
from service.db.models.datasets import (
    REMOVED,
    UNREMOVED,
    Dataset,
    DatasetVersion,
    UploadChunk,
)
from service.db.models.jobs import (
    OLD_ARTIFACTS,
    OLD_CHECKPOINTS,
    OLD_LOGS,
    OLD_METRICS,
    UNTHINNED,
    WAITING,
    Experiment,
    Expiry,
    IdempotencyKey,
    Job,
    JobTag,
)
from service.db.models.records import (
    HAS_FILES,
    UNPLACED,
    Artifact,
    Checkpoint,
    Evaluation,
    Event,
    EventCounter,
    Metric,
)
from service.db.models.runs import (
    Attempt,
    IngestRun,
    ModelRunRun,
    PreparationRun,
    PreviewRun,
    Run,
    SearchRun,
)
from service.db.models.tasks import ModelRun, Preparation, Preview, Search, SearchQuery, Task
from service.db.models.webhooks import PENDING_DELIVERY, Webhook, WebhookDelivery
