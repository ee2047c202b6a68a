"""Builds a site from the pages: `make site` writes it to .site. The site loads nothing from another host.

The pages are written for a repository: they link to files outside this folder. In the site such a link leads to the
page made of that file, or is plain text if there is none.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from inspect import isfunction
from pathlib import Path, PurePosixPath

import tenure
import tenure.errors

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".site"
#: The pages of the site, in the order of its menu: file of the repository, page.
PAGES = {
    "README.md": "index",
    "docs/README.md": "pages",
    **{
        f"docs/{name}.md": "finding-a-job" if name == "search" else name  # search.html is Sphinx's own
        for name in (
            *("tasks", "flows", "limits", "recipes", "schedules", "testing", "deploying", "django", "coming-from"),
            *("stores", "encryption", "large-values", "sql", "operations", "dashboard", "search", "metrics", "tracing"),
            *("glossary", "lifecycle", "delivery", "evidence", "bench", "scale"),
        )
    },
    "CHANGELOG.md": "changelog",
}
CONFIG = """
project = "Tenure"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_title = "Tenure"
html_copy_source = html_show_sourcelink = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
default_role = "code"
"""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s#]*)(#[^)\s]*)?\)")


def api() -> str:
    """Every public name, from its docstring."""
    first = ("Tenure", "Task", "NewJob", "JobHandle", "Job", "Retry", "Flow", "Step", "outputs", "Ended")
    listed = [*first, *(name for name in tenure.__all__ if name not in first)]
    kinds = {name: _kind(getattr(tenure, name)) for name in listed}
    names = [
        f".. auto{kind}:: tenure.{name}\n" + ("   :members:\n" if kind == "class" else "")
        for name, kind in kinds.items()
    ]
    errors = [
        f".. autoexception:: tenure.errors.{name}\n   :show-inheritance:\n"
        for name, each in vars(tenure.errors).items()
        if isinstance(each, type) and issubclass(each, BaseException) and each.__module__ == "tenure.errors"
    ]
    return "\n".join(["Python API\n==========\n", *names, "Errors\n------\n", *errors])


def _kind(value: object) -> str:
    return "class" if isinstance(value, type) else "function" if isfunction(value) else "data"


def site_page(source: str) -> str:
    """A file of the repository, with its links as they are on the site."""
    here = PurePosixPath(source).parent
    text = (ROOT / source).read_text(encoding="utf-8")
    plain = re.sub(r"^```(cron|mermaid)$", "```text", text, flags=re.MULTILINE)  # Sphinx can't colour or draw these
    return _LINK.sub(lambda link: _led(link, here), plain)


def _led(link: re.Match[str], here: PurePosixPath) -> str:
    image, text, path, anchor = link[1], link[2], link[3], link[4] or ""
    target = _resolved(here / path)
    if image:
        return f"![{text}]({target.removeprefix('docs/')})"
    if target in PAGES:
        return f"[{text}](/{PAGES[target]}.md{anchor})"
    if target.startswith("docs/adr"):
        return f"[{text}](/{'decisions.md' if target == 'docs/adr' else target.removeprefix('docs/')})"
    return text


def _resolved(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def toctree(title: str, names: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *names, "```", ""])


def assemble(folder: Path) -> None:
    """Write the sources of the site."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "adr").mkdir(parents=True)
    shutil.copytree(ROOT / "docs" / "images", folder / "images")
    for source, page in PAGES.items():
        (folder / f"{page}.md").write_text(site_page(source), encoding="utf-8")
    decisions = sorted((ROOT / "docs" / "adr").glob("*.md"))
    for each in decisions:
        (folder / "adr" / each.name).write_text(site_page(f"docs/adr/{each.name}"), encoding="utf-8")
    listed = toctree("", [f"adr/{each.stem}" for each in decisions]).replace(":hidden:\n:caption: \n", "")
    (folder / "decisions.md").write_text(f"# Decisions\n\n{listed}", encoding="utf-8")
    (folder / "api.rst").write_text(api(), encoding="utf-8")
    menu = [*list(PAGES.values())[1:], "api", "decisions"]
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        index.write("\n" + toctree("Pages", menu))
    (folder / "conf.py").write_text(CONFIG, encoding="utf-8")


def main() -> int:
    sources = SITE / "sources"
    assemble(sources)
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", sources, SITE / "html"], check=False
    )
    if not built.returncode:
        print(f"the site is in {SITE.relative_to(ROOT)}/html: open index.html")
    return built.returncode


if __name__ == "__main__":
    sys.exit(main())
