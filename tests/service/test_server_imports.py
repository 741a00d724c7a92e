"""The API process imports no heavy packages."""

import subprocess
import sys

PROGRAM = """
import sys
import service.server.app
heavy = {"torch", "torchvision", "timm", "numpy", "ray", "dasl_core.train", "workers"}
shared = {"atomic", "headlines", "hits", "installed", "spec", "storage", "text", "verdict"}
shared.add("vocabulary")
core = {n for n in sys.modules if n.startswith("dasl_core.") and n.split(".")[1] not in shared}
print(sorted((heavy & set(sys.modules)) | core))
"""


def test_api_app_imports_neither_torch_nor_ray_nor_training_code() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"
