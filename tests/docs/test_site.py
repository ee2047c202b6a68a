"""The sources of the site: each page is there, and a link of the site leads to a page of the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import Error

import tenure
from docs.test_pages import ROOT

_FENCE = re.compile(r"^ *```([a-z]+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://|#)([^)\s#]+)")


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_of_tenure", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_the_docs_is_on_the_site(site: ModuleType) -> None:
    assert sorted(page.name for page in (ROOT / "docs").glob("*.md")) == sorted(
        Path(source).name for source in site.PAGES if source.startswith("docs/")
    )


def test_no_page_has_the_name_of_one_that_sphinx_writes_over_it(site: ModuleType) -> None:
    assert not {"search", "genindex", "py-modindex", "api", "decisions"} & set(site.PAGES.values())


def test_every_link_of_the_site_leads_to_a_page_of_it(site: ModuleType, tmp_path: Path) -> None:
    sources = tmp_path / "sources"

    site.assemble(sources)

    links = [(page, link) for page in sources.rglob("*.md") for link in _LINK.findall(page.read_text())]
    assert len(links) > 50
    missing = [
        (page.name, link)
        for page, link in links
        if not (sources / link[1:] if link.startswith("/") else page.parent / link).exists()
    ]
    assert missing == []


def test_only_classes_are_asked_for_their_members(site: ModuleType) -> None:
    """Sphinx makes no site of a function that is."""
    listed = re.findall(r"\.\. auto(\w+):: tenure\.\w+\n(   :members:\n)?", site.api())

    assert {kind for kind, _ in listed} >= {"class", "function"}
    assert {kind for kind, members in listed if members} == {"class"}


def test_every_block_of_code_is_in_the_language_that_its_fence_names(site: ModuleType, tmp_path: Path) -> None:
    """Sphinx makes no site of a page with a block that it can't colour."""
    sources = tmp_path / "sources"

    site.assemble(sources)

    found = [(page.name, *block) for page in sources.rglob("*.md") for block in _FENCE.findall(page.read_text())]
    assert len(found) > 50
    strange = [
        (page, language, text)
        for page, language, code in found
        for kind, text in get_lexer_by_name(language).get_tokens(code)
        if kind is Error
    ]
    assert strange == []


def test_every_public_name_is_in_the_reference(site: ModuleType) -> None:
    assert [name for name in tenure.__all__ if f":: tenure.{name}\n" not in site.api()] == []
