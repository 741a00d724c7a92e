"""Write the `.env` that docker-compose.yml needs: new secrets, and the folder of images.

    python3 docker/make_env.py [--data FOLDER] [--gpu] [--s3]

Needs only Python. An existing file is never overwritten, because a database keeps the password with which
it was created.
"""

import argparse
import os
import secrets
import stat
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> str | None:
    """Write the file; return an error message, or None."""
    parser = argparse.ArgumentParser(
        description="Write .env with the secrets that docker-compose.yml needs."
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder of images and weights that jobs may read as /data (default: data, "
        "next to docker-compose.yml)",
    )
    parser.add_argument("--gpu", action="store_true", help="train on the GPUs of this machine")
    parser.add_argument(
        "--s3", action="store_true", help="keep the artifacts on an S3 server of the deployment"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / ".env", metavar="FILE", help="default: .env"
    )
    parser.add_argument(
        "--monitoring", action="store_true", help="start Prometheus and Grafana, too"
    )
    arguments = parser.parse_args()
    data = arguments.data.expanduser().absolute() if arguments.data else ROOT / "data"
    if "'" in str(data) or not str(data).isprintable():
        return (
            f"{str(data)!r}: the file cannot contain this name; use a link whose name has no quotes"
        )
    if arguments.data and not data.is_dir():
        return f"--data: {data} is {'not a folder' if data.exists() else 'missing'}"
    try:
        data.mkdir(exist_ok=True)
        descriptor = os.open(arguments.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        if error.filename == str(data):
            return f"{data} is not a folder"
        return (
            f"{arguments.output} already exists and contains the secrets of a deployment, so it is not changed. "
            "To use another folder of images, edit DASL_DATA in it. If nothing was started with it yet, remove "
            "it and run this command again"
        )
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(
            content(data, gpu=arguments.gpu, monitoring=arguments.monitoring, s3=arguments.s3)
        )
    print(f"Wrote {arguments.output}. Jobs see {data} as /data.")
    if not data.stat().st_mode & stat.S_IXOTH:
        print(f"The containers' user cannot read {data}. Run: chmod o+rx {data}")
    print("Next: docker compose up --detach --build --wait")
    return None


def content(data: Path, *, gpu: bool, monitoring: bool = False, s3: bool = False) -> str:
    """Return the text of the file, with new secrets."""
    chosen = {"gpu": gpu, "monitoring": monitoring, "s3": s3}
    profiles = [name for name, is_chosen in chosen.items() if is_chosen]
    lines = [
        "# Written by docker/make_env.py. Read access to this file gives full control of the service.",
        f"DASL_POSTGRES_PASSWORD={secrets.token_hex(32)}",
        f"RAY_AUTH_TOKEN={secrets.token_hex(32)}",
        f"DASL_METRICS_TOKEN={secrets.token_hex(32)}",
        f"DASL_GRAFANA_PASSWORD={secrets.token_hex(16)}",
        f"DASL_DATA='{data}'",
        *([f"COMPOSE_PROFILES={','.join(profiles)}"] if profiles else []),
        *(["DASL_CPU_WORKERS=0"] if gpu else []),
        *(_s3_access() if s3 else []),
    ]
    return "\n".join(lines) + "\n"


def _s3_access() -> list[str]:
    return [
        "DASL_ARTIFACTS_URI=s3://dasl/artifacts",
        "AWS_ENDPOINT_URL=http://s3:8333",
        "AWS_REGION=us-east-1",
        "AWS_ACCESS_KEY_ID=dasl",
        f"AWS_SECRET_ACCESS_KEY={secrets.token_hex(32)}",
    ]


if __name__ == "__main__":
    sys.exit(main())
