"""Each shell and Python block of the pages runs, or a comment above it says why it does not.

A block that no test runs has `<!-- not run: REASON -->` above its fence. Those of a page run in their order, against
a real API with a job that has ended. What needs workers runs elsewhere.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from service.tokens import service as tokens
from tests.support.api_server import running_service
from tests.support.busy_service import BusyService
from tests.support.running_service import write_images
from tests.test_docs import PAGES, ROOT

pytestmark = pytest.mark.slow

# Tests that run blocks of a page as they are, and how the first lines of these begin.
ELSEWHERE = {
    ("README.md", "tests/e2e/test_deployed.py"): ("source .venv", "import json, timm"),
    ("docs/first-job.md", "tests/e2e/test_deployed.py"): ("dasl show last", "import json, timm"),
    ("docs/checkpoints.md", "tests/e2e/test_deployed.py"): ("import json",),
    ("docs/api.md", "tests/service/client/test_cli_webhooks.py"): ("import os",),
    ("docs/library.md", "tests/dasl_core/test_library_page.py"): ("import", "from pathlib"),
}
# What a reader puts in place of a placeholder, as in the answer before.
OWN = {
    r"http://127\.0\.0\.1:8000": "$DASL_URL",
    r"dasl_\.\.\.": "$DASL_TOKEN",
    r'"birds", "uri"': '"birds-2", "uri"',
    r"dasl delete": "dasl delete --yes",
    r"tenants set default": "tenants set t",
    r"(DASL_TENANT=(\w+) .*)USER_ID": r"\1$(newest users \2)",
    r"\bUSER_ID": "$(newest users)",
    r"\bTOKEN_ID|(?<=tokens/)TOKEN\b": "$(newest tokens)",
    r"\bDATASET/content": "$(newest datasets)/content",
    r"\bDATASET\b": "$(newest datasets?name=birds)",
    r"\bJOB\b": "$(newest jobs?status=succeeded)",
    r"\bCHECKPOINT\b": "$(newest jobs/$(newest jobs?status=succeeded)/checkpoints)",
}
FUNCTIONS = """
curl() { command curl --fail-with-body "$@"; }
newest() {
    command curl -s -H "Authorization: Bearer $DASL_TOKEN" ${2:+-H "DASL-Tenant: $2"} "$DASL_URL/v1/$1" |
        grep -o '"id":"[^"]*"' | sed -n '1s/.*:"\\(.*\\)"/\\1/p'
}
"""


class Block(NamedTuple):
    """A block of a page; `mark` is why it does not run."""

    page: str
    mark: str | None
    language: str
    code: str

    @property
    def elsewhere(self) -> bool:
        """Whether another test runs it."""
        starts = [each for (page, _), each in ELSEWHERE.items() if page == self.page]
        return any(self.code.startswith(each) for each in starts)


def blocks_of(page: Path) -> list[Block]:
    """Return the shell and Python blocks of a page, in order."""
    pattern = r"^( *)(?:<!-- not run:([^\n]*)-->\n\1)?```(bash|python)\n(.*?)^\1```"
    name = str(page.relative_to(ROOT))
    found = re.finditer(pattern, page.read_text(encoding="utf-8"), re.M | re.S)
    return [Block(name, each[2], each[3], dedent(each[4])) for each in found]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
HERE = [block for block in BLOCKS if block.mark is None and not block.elsewhere]


@pytest.mark.parametrize("page", sorted({block.page for block in HERE}))
def test_blocks_run(page: str, tmp_path: Path) -> None:
    for folder in ("pictures/birds", "data/birds"):
        write_images(tmp_path / folder, 4)
    (tmp_path / "data" / "birds.csv").write_text("path\nbirds/circles/0000.png\n")
    (tmp_path / "first-chunk").write_bytes(bytes(2**24))
    (tmp_path / "spec.yaml").write_text("dataset: birds\n")
    home = tmp_path / ".local" / "share" / "dasl"
    with running_service(home) as service:
        busy = BusyService(service, tmp_path / "pictures" / "birds")
        busy.finished("baseline", seed=0, gain=0.0)
        with service.database.write() as session:
            _, token = tokens.create(session, tenant="t", name="docs", scopes=["operator"])
        blocks = [block for block in HERE if block.page == page]
        assert {block.language for block in blocks} == {"bash"}
        code = "\n".join(block.code for block in blocks).replace('"/data/', f'"{tmp_path}/data/')
        for written, own in OWN.items():
            code = re.sub(written, own, code)
        ended = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", FUNCTIONS + code],
            cwd=tmp_path,
            env={
                "DASL_URL": service.url,
                "DASL_TOKEN": token,
                "HOME": str(tmp_path),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        busy.client.close()
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_each_mark_says_why_a_block_does_not_run() -> None:
    marks = sum(page.read_text(encoding="utf-8").count("<!-- not run") for page in PAGES)
    marked = [block for block in BLOCKS if block.mark is not None]
    assert marks == len(marked), "each mark is the line above a block"
    for block in marked:
        assert block.mark is not None
        assert block.mark.strip(), block
        for named in re.findall(r"(?:tests|examples)/[\w/.-]+\.\w+", block.mark):
            assert (ROOT / named).exists(), named


def test_tests_elsewhere_run_blocks_of_their_page() -> None:
    for (page, test), starts in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")
        for start in starts:
            marks = [b.mark for b in BLOCKS if b.page == page and b.code.startswith(start)]
            assert marks.count(None) == 1 or (page == "docs/library.md" and None in marks)
