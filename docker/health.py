"""Health check of a container: `python health.py URL [CHECK]`, exit code 0 if healthy.

The URL must answer with 200. With CHECK, only that check of a `/readyz` answer must be `ok`. A `file:` URL
must have been touched within CHECK seconds.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

# A machine that trains on all its cores is slow but healthy.
SECONDS = 15.0


def main(url: str, check: str | None = None) -> str | None:
    """Return the problem, or None if healthy."""
    if url.startswith("file://"):
        return stale(url.removeprefix("file://"), float(check or SECONDS))
    # Bypass a proxy set in the environment: the URL is local.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=SECONDS) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        body = error.read()
        if check is None:
            return f"{url} answers {error.code}"
    except OSError as error:
        return f"{url} does not answer: {error}"
    if check is None:
        return None
    state = json.loads(body).get("checks", {}).get(check, "unknown")
    return None if state == "ok" else f"{check}: {state}"


def stale(path: str, seconds: float) -> str | None:
    """Return how long ago the process touched its file, if too long."""
    try:
        age = time.time() - os.stat(path).st_mtime
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path} was last touched {age:.0f} s ago" if age > seconds else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
