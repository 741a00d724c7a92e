"""The Python SDK: `from service.client import Client`, or `AsyncClient`.

The clients are imported on first use: the command line needs the errors, but must start without importing
httpx and pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from service.client.errors import ApiError as ApiError
from service.client.errors import ConfigError as ConfigError
from service.client.errors import ConnectionFailed as ConnectionFailed
from service.client.errors import DaslError as DaslError
from service.client.errors import DatasetFailed as DatasetFailed
from service.client.errors import DownloadFailed as DownloadFailed
from service.client.errors import InvalidSpec as InvalidSpec
from service.client.errors import JobFailed as JobFailed
from service.client.errors import ModelRunFailed as ModelRunFailed
from service.client.errors import PreparationFailed as PreparationFailed
from service.client.errors import PreviewFailed as PreviewFailed
from service.client.errors import StaleAttempt as StaleAttempt
from service.client.errors import UploadFailed as UploadFailed
from service.client.errors import WaitTimeout as WaitTimeout

if TYPE_CHECKING:
    from service.client.aio.client import AsyncClient as AsyncClient
    from service.client.sync.client import Client as Client
    from service.client.worker import WorkerClient as WorkerClient

_CLIENTS = {
    "AsyncClient": "service.client.aio.client",
    "Client": "service.client.sync.client",
    "WorkerClient": "service.client.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLIENTS[name]), name)
