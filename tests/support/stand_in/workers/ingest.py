"""An ingest run that finds a hundred images without looking."""

from __future__ import annotations

import argparse
import os

from service.client.attempt_token import own_token
from service.client.worker import WorkerClient


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True)
    dataset = parser.parse_args().dataset
    client = WorkerClient(os.environ["DASL_API_URL"], own_token())
    start = client.dataset_start(dataset)
    client.dataset_finish(
        dataset,
        state="ready",
        facts={"num_images": 100, "num_classes": 2, "median_size": 32},
        report={"num_images": 100, "num_skipped": 0, "skipped": []},
        index_uri=f"{start.artifacts_uri}/index.json.gz",
    )


if __name__ == "__main__":
    main()
