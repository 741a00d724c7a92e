"""Health check of a container: `python health.py URL [CHECK]`, exit code 0 if it is well.

Well is a URL that answers with 200; with CHECK, a `/readyz` that says `ok` of that check, whatever it
says of others.
"""

import json
import sys
import urllib.error
import urllib.request

# A machine that trains on all its cores is slow, and not ill.
SECONDS = 15.0


def main(url: str, check: str | None = None) -> str | None:
    """What is wrong; `None`: nothing."""
    # Straight there: a proxy that the environment names is for the world outside.
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
    said = json.loads(body).get("checks", {}).get(check, "unknown")
    return None if said == "ok" else f"{check}: {said}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
