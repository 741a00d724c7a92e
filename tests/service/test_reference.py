"""`/docs` loads nothing from another origin, under a strict policy, and its vendored files are the published ones."""

import hashlib
import re
from pathlib import Path

from service.reference import endpoints
from tests.support.api_under_test import Api, refused

VENDOR = Path(endpoints.__file__).parent / "vendor"


def test_vendored_files_equal_their_checksums() -> None:
    listed = {
        name: digest
        for digest, name in re.findall(
            r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "SHA256SUMS").read_text(), flags=re.M
        )
    }
    files = {file.name for file in VENDOR.iterdir()} - {"README.md", "SHA256SUMS"}
    assert set(listed) == files
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_reference_page_has_only_own_scripts_and_styles(api: Api) -> None:
    del api.client.headers["authorization"]
    page = api.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", page.text), (
        "inline, which the policy forbids"
    )
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert [address for address in addresses if address.startswith("docs/")] == [
        "docs/swagger-ui.css",
        "docs/swagger-ui-bundle.js",
        "docs/reference.js",
    ]
    assert not [address for address in addresses if "//" in address]
    for address, kind in (
        ("docs/swagger-ui.css", "text/css"),
        ("docs/swagger-ui-bundle.js", "text/javascript"),
        ("docs/reference.js", "text/javascript"),
    ):
        file = api.client.get(f"/{address}")
        assert file.status_code == 200
        assert file.headers["content-type"].startswith(kind)
        assert file.headers["x-content-type-options"] == "nosniff"
    assert 'url: "openapi.json"' in api.client.get("/docs/reference.js").text


def test_reference_shows_no_other_file(api: Api) -> None:
    for name in (
        "endpoints.py",
        "vendor",
        "..%2Fendpoints.py",
        "%2e%2e",
        "SHA256SUMS",
        "\U0001f600",
    ):
        refused(api.client.get(f"/docs/{name}"), 404)
    refused(api.client.get("/redoc"), 404)
