"""Settings of Sphinx for the site of the documentation.

The pages are the Markdown files of the repository at their own paths, so that a link works on a git host and on the
site. `NAVIGATION` lists them: Sphinx warns of a page that is missing there, and `-W` turns a warning into an error.
"""

import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parents[2]

NAVIGATION = {
    "Start": [
        "docs/first-job",
        "docs/data",
        "docs/methods",
        "docs/healthy",
        "docs/continue",
        "docs/regularizers",
        "docs/page",
        "docs/troubleshooting",
    ],
    "Use": [
        "docs/spec",
        "docs/experiments",
        "docs/plots",
        "docs/checkpoints",
        "docs/verify",
        "docs/embeddings",
        "docs/tracking",
        "docs/local",
        "docs/library",
        "docs/api",
    ],
    "Run": ["docs/team", "docs/operations", "docs/scaling", "docs/security"],
    "Develop": [
        "CONTRIBUTING",
        "docs/architecture",
        "docs/distributed",
        "benchmarks/README",
        "examples/README",
        "examples/papers/README",
        "examples/rows/README",
        "tests/chaos/README",
        "CHANGELOG",
    ],
}

project = "DASL"
version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = ["README.md", *(f"{page}.md" for pages in NAVIGATION.values() for page in pages)]
include_patterns.append("docs/*.md")  # Sphinx warns of one that the navigation lacks.
_FOLDERS = {"docs", "benchmarks", "examples", "tests"}
# Sphinx would walk through environments and builds, too.
exclude_patterns = [
    path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in _FOLDERS
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 6  # with the names that GitHub gives them
html_theme = "furo"
html_title = f"DASL {version}"
html_math_renderer = "mathml"
html_extra_path = ["index.html"]
# Scripts cannot fetch other pages of a site that is opened from the disk.
html_show_search_summary = False
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_show_copyright = False


def add_navigation(app: Sphinx, page: str, text: list[str]) -> None:
    """Append the table of contents to the first page; a git host would show it as code."""
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            entries = "\n".join(f"/{entry}" for entry in pages)
            text[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def inline_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers render without a script."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block_math(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own line as MathML."""
    translator.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what is ours with Sphinx."""
    app.connect("source-read", add_navigation)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
