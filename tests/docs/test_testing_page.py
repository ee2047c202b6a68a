"""What docs/testing.md shows runs as it stands, and is what the examples are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.test_pages import ROOT, _environment, blocks
from tenure.testing import queue as testing

pytestmark = pytest.mark.thorough

PAGE = (ROOT / "docs" / "testing.md").read_text()
PROGRAMS = {text.split(maxsplit=2)[1]: text.partition("\n")[2] for text in blocks(PAGE, "python")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    return tmp_path


def said(folder: Path, name: str) -> str:
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_tenure",
            "--rootdir",
            str(folder),
            name,
        ],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return run.stdout


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name.startswith("test_")])
def test_a_test_on_the_page_passes(name: str, folder: Path) -> None:
    assert re.search(r"^\d+ passed", said(folder, name), re.MULTILINE), name


def test_a_payment_that_is_not_protected_is_found_wherever_it_is_charged_twice(folder: Path) -> None:
    test = folder / "test_payments.py"
    test.write_text(test.read_text().replace("pay_safely.bind", "pay.bind"))

    output = said(folder, test.name)

    assert "killed at 'call FakeGateway.charge'" in output


def test_a_key_that_the_other_side_knows_closes_the_gap_that_once_leaves(folder: Path) -> None:
    program = folder / "payments.py"
    program.write_text(program.read_text().replace(", key=str(job.id)", ""))

    output = said(folder, "test_payments.py")

    assert re.search(r"killed at '(call FakeGateway\.charge|acted charge)'", output)


@pytest.mark.parametrize("name", ["payments.py", "test_payments.py"])
def test_the_example_is_the_one_on_the_page(name: str) -> None:
    assert (ROOT / "examples" / name).read_text() == PROGRAMS[name]


def test_every_point_is_on_the_page() -> None:
    points = re.findall(r"^    ([a-z]+(?: [a-z]+)?(?: [A-Z]+)?)  ", testing.__doc__ or "", re.MULTILINE)

    assert len(points) == 17
    assert [point for point in points if f"`{point}`" not in PAGE] == []
