"""Check of an external Ray, on the machine of the dispatcher."""

import os
from collections.abc import Iterator

from service.doctor import Finding

_NAME = "Ray's version"
_TIMEOUT_SECONDS = 5.0


def run_checks() -> Iterator[Finding]:
    """Compare Ray's version with the tested one, if DASL_RAY_ADDRESS is set here."""
    if "DASL_RAY_ADDRESS" not in os.environ:
        return
    try:
        from service.dispatcher.executor import ExecutorUnavailable
        from service.dispatcher.ray_executor import TESTED_RAY, RayExecutor, is_tested
        from service.settings import read_settings

        settings = read_settings()
    except (ModuleNotFoundError, ValueError):
        return  # `local_storage` reports it.
    token = settings.ray_auth_token
    ray = RayExecutor(
        settings.ray_address,
        None if token is None else token.get_secret_value(),
        timeout=_TIMEOUT_SECONDS,
    )
    try:
        version = ray.version()
    except ExecutorUnavailable as error:
        remedy = "Start Ray's head, or correct DASL_RAY_ADDRESS and RAY_AUTH_TOKEN"
        yield Finding(_NAME, "fail", str(error), remedy)
        return
    finally:
        ray.close()
    if is_tested(version):
        yield Finding(_NAME, "ok", f"{version} at {settings.ray_address}")
        return
    message = f"{settings.ray_address} has version {version}, and DASL is tested with {TESTED_RAY}"
    yield Finding(_NAME, "warn", message, f"Run Ray {TESTED_RAY} on all nodes of the cluster")
