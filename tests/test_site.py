"""The site of the documentation: built strictly, whole, linked, searchable, and without another origin."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.test_docs import PAGES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
# Elements that make a browser load something by themselves, and the attribute that names it.
LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}


class Page(HTMLParser):
    """Links, resources and anchors of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.navigation: set[str] = set()
        self.resources: set[str] = set()
        self.anchors: set[str] = set()
        self.formulas = 0
        self.in_sidebar = 0
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        self.formulas += tag == "math"
        if self.in_sidebar or "sidebar-tree" in attributes.get("class", ""):
            self.in_sidebar += tag == "div"
        if tag == "a" and "href" in attributes:
            (self.navigation if self.in_sidebar else self.links).add(attributes["href"])
        if tag in LOADED and attributes.get(LOADED[tag]):
            self.resources.add(attributes[LOADED[tag]])
        self.resources |= set(re.findall(r"url\(([^)]+)\)", attributes.get("style", "")))

    def handle_endtag(self, tag: str) -> None:
        if self.in_sidebar and tag == "div":
            self.in_sidebar -= 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it: a warning of Sphinx is an error."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "--keep-going", "-c", "tools/site", "-d", str(folder / "doctrees")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ".", str(folder / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted(site.glob("**/*.html"))}


def target_of(file: Path, link: str) -> tuple[Path, str]:
    """Return the file and the anchor that a link within the site names."""
    parts = urlsplit(link)
    path = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    return path, unquote(parts.fragment)


def test_make_builds_the_site_with_the_same_options() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m sphinx -q -W --keep-going -c tools/site" in makefile


def test_site_has_every_page_of_the_repository(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").exists(), page


def test_every_page_is_reachable_from_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    first = site / "README.html"
    reachable = {target_of(first, link)[0] for link in pages[first].navigation} | {first}
    expected = {(site / page.relative_to(ROOT)).with_suffix(".html") for page in PAGES}
    assert len(expected) > 25
    assert expected <= reachable
    assert 'url=README.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    checked, broken = 0, []
    for file, page in pages.items():
        for link in page.links | page.navigation:
            if urlsplit(link).scheme:
                continue
            path, anchor = target_of(file, link)
            checked += 1
            # Furo names the top of a page for its button; browsers know it without an anchor.
            if not path.is_relative_to(site) or not path.exists():
                broken.append(f"{file.name}: {link}")
            elif anchor and path.suffix == ".html" and anchor not in pages[path].anchors:
                broken.append(f"{file.name}: {link} (no such anchor)")
    assert checked > 1000
    assert broken == []


def test_no_page_loads_anything_from_another_origin(site: Path, pages: dict[Path, Page]) -> None:
    resources = {
        (file, resource)
        for file, page in pages.items()
        for resource in page.resources
        if not resource.startswith("data:")
    }
    assert len(resources) > 100
    for file, resource in resources:
        parts = urlsplit(resource)
        assert (parts.scheme, parts.netloc) == ("", ""), f"{file.name} loads {resource}"
        assert target_of(file, resource)[0].exists(), f"{file.name} lacks {resource}"
    for sheet in site.glob("**/*.css"):
        text = sheet.read_text(encoding="utf-8")
        foreign = re.findall(r"(?:url\(\s*|@import\s+)[\"']?(?:https?:)?//[^\"')\s]+", text)
        assert foreign == [], sheet.name
    for script in site.glob("**/*.js"):
        code = script.read_text(encoding="utf-8")
        loads = re.findall(r"(?:fetch|import|importScripts)\(\s*[\"'](?:https?:)?//[^\"']+", code)
        assert loads == [], script.name


def test_formulas_are_mathml(site: Path, pages: dict[Path, Page]) -> None:
    for name in ("regularizers", "distributed"):
        file = site / "docs" / f"{name}.html"
        assert pages[file].formulas > 3
        assert not re.search(r"\\(?:lVert|frac|sum)", file.read_text(encoding="utf-8"))


def test_search_finds_words_in_all_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    content = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    assert {str(page.relative_to(ROOT).with_suffix("")) for page in PAGES} <= set(
        content["docnames"]
    )
    for word, page in (
        ("collaps", "docs/healthy"),
        ("dinov2", "docs/continue"),
        ("koleo", "docs/regularizers"),
    ):
        found: set[int] = set()
        for terms in (content["terms"], content["titleterms"]):
            known = terms.get(word, [])
            found |= {known} if isinstance(known, int) else set(known)
        assert content["docnames"].index(page) in found, word
