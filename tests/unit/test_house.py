"""The bounds that CONTRIBUTING.md names: a class or a file that passes one has a second purpose."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/tenure"
MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_CLASS = 300


def test_no_file_and_no_class_is_too_long() -> None:
    files = {str(path.relative_to(SOURCE)): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    classes = {
        f"{name}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, text in files.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }
    assert "app/app.py:Tenure" in classes
    assert {name for name, text in files.items() if text.count("\n") > MOST_LINES_OF_A_FILE} == set()
    assert {name for name, lines in classes.items() if lines > MOST_LINES_OF_A_CLASS} == set()
