"""Every setting is written down wherever people look for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tenure.cli.main import main
from tenure.config import SETTINGS, load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_settings", ROOT / "docs" / "settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_and_the_example_are_up_to_date(generator: ModuleType) -> None:
    behind = [path.name for path, text in generator.wanted().items() if path.read_text() != text]

    assert not behind, f"run: python docs/settings.py --write (behind: {behind})"


@pytest.mark.parametrize("place", ["docs/operations.md", ".env.example"])
def test_every_setting_has_its_line(place: str) -> None:
    text = (ROOT / place).read_text()

    assert [row.env for row in SETTINGS if row.env not in text] == []


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    shown = "".join(capsys.readouterr().out.split())
    assert [row.env for row in SETTINGS if row.env not in shown] == []


def test_the_example_with_every_line_uncommented_is_what_the_defaults_are(tmp_path: Path) -> None:
    defaults = load(environ={}, folder=tmp_path).shown()
    lines = (ROOT / ".env.example").read_text().splitlines()
    (tmp_path / ".env").write_text("\n".join(line.removeprefix("#") for line in lines if line.startswith("#TENURE_")))

    shown = load(environ={}, folder=tmp_path).shown()

    assert shown[0][1:] == (f"sqlite:///{tmp_path}/tenure.db", ".env")
    for (row, value, _), (_, default, _) in zip(shown, defaults, strict=True):
        assert value == default, row.name
