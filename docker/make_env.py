"""Make the `.env` that docker-compose.yml needs: new secrets, and where the images of its users are.

    python3 docker/make_env.py [--data FOLDER] [--gpu]

Needs nothing but Python. What is there already is never overwritten: a database keeps the password that
it was made with.
"""

import argparse
import os
import secrets
import stat
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> str | None:
    """Write the file that the command line asks for; what prevented it, or None."""
    parser = argparse.ArgumentParser(description="Make the secrets that docker-compose.yml needs.")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="images and weights that jobs may read, seen by them as /data (default: data, "
        "beside docker-compose.yml)",
    )
    parser.add_argument("--gpu", action="store_true", help="train on the GPUs of this machine")
    parser.add_argument(
        "--output", type=Path, default=ROOT / ".env", metavar="FILE", help="default: .env"
    )
    given = parser.parse_args()
    data = given.data.expanduser().absolute() if given.data else ROOT / "data"
    if "'" in str(data) or not str(data).isprintable():
        return (
            f"{str(data)!r}: the file cannot hold such a name; link to it from one without quotes"
        )
    if given.data and not data.is_dir():
        return f"--data: {data} is {'not a folder' if data.exists() else 'not there'}"
    try:
        data.mkdir(exist_ok=True)
        descriptor = os.open(given.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        if error.filename == str(data):
            return f"{data} is not a folder"
        return (
            f"{given.output} is there already, and holds the secrets of a deployment: it stays. Where the "
            "images are is in it as DASL_DATA; if nothing was started with it yet, remove it and run this again"
        )
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content(data, gpu=given.gpu))
    print(f"Wrote {given.output}. Jobs see {data} as /data.")
    if not data.stat().st_mode & stat.S_IXOTH:
        print(f"The containers run as a user of their own, who cannot read {data}: chmod o+rx it")
    print("Next: docker compose up --detach --build --wait")
    return None


def content(data: Path, *, gpu: bool) -> str:
    """The text of the file, with secrets that nobody has seen."""
    lines = [
        "# Made by docker/make_env.py. Whoever has this file has the service.",
        f"DASL_POSTGRES_PASSWORD={secrets.token_hex(32)}",
        f"RAY_AUTH_TOKEN={secrets.token_hex(32)}",
        f"DASL_DATA='{data}'",
        *(["COMPOSE_PROFILES=gpu", "DASL_CPU_WORKERS=0"] if gpu else []),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
