"""Show Ray's autoscaler which resources jobs need: `python -m workers.demand --bundles JSON`.

The dispatcher submits it to Ray's Jobs API, because only Ray's own clients have this function. The request
replaces the previous one, and persists after this process has ended.
"""

import argparse
import json
import os

Bundles = list[tuple[int, dict[str, float], dict[str, str]]]


def main() -> None:
    """Request the bundles on the command line, each [number, resources, node labels]."""
    parser = argparse.ArgumentParser(description="Show Ray's autoscaler what jobs need.")
    parser.add_argument("--bundles", required=True, type=json.loads)
    bundles: Bundles = parser.parse_args().bundles
    import ray
    from ray.autoscaler.sdk import request_resources

    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"))
    request_resources(
        bundles=[dict(resources) for count, resources, _ in bundles for _ in range(count)],
        bundle_label_selectors=[dict(labels) for count, _, labels in bundles for _ in range(count)],
    )


if __name__ == "__main__":
    main()
