"""The programs on the pages run as they stand: all Python blocks of a page, in their order, are one program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.test_pages import ROOT, _environment, blocks

PROGRAMS = ["tasks.md", "flows.md", "limits.md", "recipes.md", "stores.md", "large-values.md"]


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_program_of_a_page_runs(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n\n".join(blocks((ROOT / "docs" / page).read_text(), "python")))

    run = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (run.returncode, run.stderr) == (0, ""), run.stderr
