"""What the pages say about the life-cycle is what `tenure.core.lifecycle` says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tenure.core.lifecycle import MOVES, State

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate.py"))


def test_the_generated_blocks_are_current(generate: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    stale = generate["run"](DOCS, check=True)

    assert not stale, capsys.readouterr().out


def test_a_stale_block_is_shown_as_a_diff_and_left_alone(
    generate: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: life-cycle-chart -->\nold\n<!-- end -->\nafter\n")

    assert generate["run"](tmp_path, check=True) == 1

    assert "-old" in capsys.readouterr().out
    assert "old" in page.read_text()


def test_a_stale_block_is_rewritten_and_the_rest_kept(generate: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: life-cycle-chart -->\nold\n<!-- end -->\nafter\n")

    assert generate["run"](tmp_path, check=False) == 0

    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "old" not in text and "queued --> processing: claim" in text
    assert generate["run"](tmp_path, check=True) == 0


def test_every_block_is_on_a_page(generate: dict[str, Any]) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))

    for name in generate["BLOCKS"]:
        assert f"<!-- generated: {name} -->" in pages


def test_the_chart_has_an_arrow_for_every_move_that_keeps_the_job(generate: dict[str, Any]) -> None:
    chart = generate["chart"]()

    for move in MOVES:
        for source in move.sources:
            for target in move.targets:
                assert f"    {source} --> {target}: " in chart


@pytest.mark.parametrize("state", State)
def test_every_state_is_explained(state: State) -> None:
    assert f"| `{state}` | " in (DOCS / "lifecycle.md").read_text(encoding="utf-8")
