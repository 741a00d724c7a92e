"""How the page's files are served, and that the vendored ones are those that were published."""

import hashlib
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.server.app import create_app
from service.settings import Settings
from service.web.endpoints import ROOT, page

VENDOR = ROOT / "vendor"


@pytest.fixture
def client() -> TestClient:
    return TestClient(create_app(Settings(home=Path("/nowhere"))))


def named_by_document(client: TestClient) -> set[str]:
    """Return the files that a visit loads at once."""
    return set(re.findall(r'(?:href|src)="page/\w+/([^"]+)"', client.get("/").text))


def imports_of(name: str, statement: str) -> set[str]:
    """Return what a module imports by a statement, such as `from`."""
    imported = re.findall(rf'{statement}\s*"(\.[^"]+)"', page().files[name].content.decode())
    root = ROOT.resolve()
    return {
        str((root / name).parent.joinpath(each).resolve().relative_to(root)) for each in imported
    }


def test_vendored_files_are_described_and_have_their_published_hashes() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    listed = {name: sha for sha, name in (line.split("  ") for line in lines)}
    files = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS", "README.md"}
    assert files == set(listed)
    described = (VENDOR / "README.md").read_text()
    for name, sha in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == sha, name
        assert f"`{name}`" in described or not name.endswith((".js", ".css"))


def test_document_allows_only_its_own_origin(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert "{{" not in answer.text
    # Neither a script nor a style in the document, nor anything of another host.
    assert re.findall(r"<script(?![^>]* src=)|<style|style=|https?://", answer.text) == []


def test_every_file_that_the_document_names_is_served_for_good(client: TestClient) -> None:
    for name in set(re.findall(r'(?:href|src)="([^"]+)"', client.get("/").text)):
        answer = client.get(f"/{name}")
        assert answer.status_code == 200, name
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_every_import_of_a_module_is_served() -> None:
    for name in page().files:
        if name.startswith("js/"):
            assert imports_of(name, r"(?:from|import\()") <= page().files.keys(), name


def test_modules_are_served_without_comments_and_with_their_lines() -> None:
    for name, file in page().files.items():
        source, served = (ROOT / name).read_text(), file.content.decode()
        if not name.startswith("js/"):
            assert served == source
            continue
        assert served.count("\n") == source.count("\n"), name
        rest = re.sub(r"^ *(//.*| ?\*.*|/\*\*)$|/\*\*.*?\*/ ?", "", source, flags=re.MULTILINE)
        assert [line for line in served.splitlines() if line] == [
            line for line in rest.splitlines() if line
        ], name


def test_browser_that_has_the_document_gets_304(client: TestClient) -> None:
    tag = client.get("/").headers["ETag"]
    answer = client.get("/", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.content) == (304, b"")


def test_file_of_another_version_is_not_kept(client: TestClient) -> None:
    answer = client.get("/page/0123/app.css")
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    "name", ["endpoints.py", "vendor/SHA256SUMS", "../settings.py", "index.html"]
)
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{page().version}/{name}").status_code == 404


def test_files_are_compressed_only_where_accepted(client: TestClient) -> None:
    path = f"/page/{page().version}/app.css"
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    packed = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.text == plain.text


def test_page_is_small(client: TestClient) -> None:
    """What a visit loads at once; and all that it may load later, but the library for YAML."""
    files, named = page().files, named_by_document(client)
    assert sum(len(files[name].compressed) for name in named) < 100_000
    later = files.keys() - named
    assert sum(len(files[name].compressed) for name in later if "yaml" not in name) < 45_000


def test_modules_that_a_view_imports_are_named_by_the_document(client: TestClient) -> None:
    named = named_by_document(client)
    for name in named:
        assert imports_of(name, "from") <= named, name
    assert "js/pictures/map.js" not in named
