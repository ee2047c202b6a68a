"""Writes the settings table into the pages that have it, and `.env.example`: `python docs/settings.py --write`.

Without --write it only says which files are behind `tenure.config.SETTINGS`, and exits with 1 if any is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tenure.config import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(<!-- settings: python docs/settings.py --write -->\n).*?(<!-- end of settings -->)", re.DOTALL)


def markdown_table() -> str:
    """One row a setting, for a page."""
    rows = ["| environment | default | what it is |", "| --- | --- | --- |"]
    for row in SETTINGS:
        default = "" if row.default is None else f"`{row.default}`"
        rows.append(f"| `{row.env}` | {default} | {row.help} |")
    return "\n".join(rows) + "\n"


def env_example() -> str:
    """An `.env` with every setting at its default, commented out."""
    head = "# Copy to .env and uncomment what you change. Only TENURE_ names are read, and the environment wins.\n"
    return head + "".join(f"\n# {row.help}\n#{row.env}={row.default or ''}\n" for row in SETTINGS)


def with_table(page: str) -> str:
    """The page with its block filled in; a page without a block is returned as it is."""
    return _BLOCK.sub(lambda block: f"{block[1]}{markdown_table()}{block[2]}", page)


def wanted() -> dict[Path, str]:
    """What each generated file should hold."""
    pages = [page for page in (ROOT / "README.md", ROOT / "docs" / "operations.md") if page.exists()]
    return {ROOT / ".env.example": env_example(), **{page: with_table(page.read_text()) for page in pages}}


def main(argv: list[str]) -> int:
    behind = [path for path, text in wanted().items() if not path.exists() or path.read_text() != text]
    for path in behind:
        if "--write" in argv:
            path.write_text(wanted()[path])
        print(f"{'written' if '--write' in argv else 'behind'}: {path.relative_to(ROOT)}")
    return 0 if "--write" in argv or not behind else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
