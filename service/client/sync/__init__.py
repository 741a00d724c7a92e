"""The synchronous client; `tools.sync_client` generates its modules when the package is installed or built."""

from pathlib import Path

if not Path(__file__).with_name("client.py").exists():
    raise ImportError(
        "service/client/sync: its modules are not written yet. Run `make setup` or `pip install --editable .`."
    )
