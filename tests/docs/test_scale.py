"""docs/scale.md: its tables are those that `make scale` writes, and a small run of it does what it says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.test_pages import ROOT

PAGE = ROOT / "docs" / "scale.md"
PARTS = {"postgres": ("workers", "trips", "idle", "soak"), "redis": ("workers", "trips", "idle")}
NAMES = {f"{part} on {store}" for store, parts in PARTS.items() for part in parts}
_BLOCK = re.compile(r"<!-- measured: (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)


def measured(page: Path) -> dict[str, str]:
    return dict(_BLOCK.findall(page.read_text(encoding="utf-8")))


def test_each_table_of_the_page_has_figures_of_tenure_and_says_how_busy_the_machine_was() -> None:
    blocks = measured(PAGE)

    assert set(blocks) == NAMES
    for name, block in blocks.items():
        assert re.search(r"^\| tenure \|.*\d", block, re.MULTILINE), name
        assert "load of the machine" in block, name


def test_what_binds_first_is_the_least_of_what_each_resource_allows() -> None:
    found = runpy.run_path(str(ROOT / "bench" / "scale_limits.py"))
    cost: Any = found["Cost"](worker_us=100.0, server_us=50.0, log=1000.0, syncs=0.01)

    assert cost.bounds(8, one_core=False) == {"worker CPU": 6e4, "server CPU": 4e4, "log": 5e5, "fsyncs": 2e5}
    lines = [line.split(" | ") for line in found["limits"](cost, one_core=False)[-3:]]
    assert [cells[-1].rstrip(" |") for cells in lines] == ["server CPU", "fsyncs", "fsyncs"]


@pytest.mark.thorough
@pytest.mark.timeout(400)  # it takes a fifth of the usual limit on a quiet machine
def test_a_small_run_replaces_its_block_and_no_other(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text("".join(f"before\n<!-- measured: {name} -->\n<!-- end -->\nafter\n" for name in sorted(NAMES)))
    # So many that the drain takes several ticks of the processes' CPU time, which is counted in hundredths of a second.
    small = ("--jobs", "5000", "--workers", "1", "2", "--rounds", "1", "--soak", "6", "--pace", "50")
    chosen = ("--only", "tenure", "--stores", "postgres", "--parts", "workers", "trips", "soak", "--trips", "0.002")

    run = subprocess.run(
        [sys.executable, "-m", "bench", "--scale", *small, *chosen, "--write", str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )

    assert run.returncode == 0, run.stderr
    blocks = measured(page)
    filled = {name for name, block in blocks.items() if block}
    assert filled == {"workers on postgres", "trips on postgres", "soak on postgres"}
    first, second = re.findall(r"([\d,]+) \(", blocks["workers on postgres"].partition("| tenure |")[2])[:2]
    assert int(first.replace(",", "")) > 0 and int(second.replace(",", "")) > 0
    assert page.read_text().count("after\n") == len(NAMES)
    single = int(re.findall(r"; (\d+) \|", blocks["trips on postgres"])[-1])
    assert 0 < single < 500, "a round trip of 2 ms"
