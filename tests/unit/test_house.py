"""The bounds that CONTRIBUTING.md names: a class or a file that exceeds one has a second purpose.

So do files that import each other in a circle: neither can be read without the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE, TESTS = Path(__file__).parents[2] / "src/tenure", Path(__file__).parents[1]
MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_CLASS = 300
MOST_ENTRIES_AT_THE_TOP = 24


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


def test_the_top_is_short_enough_to_be_read() -> None:
    # A folder that was moved away leaves its __pycache__ behind.
    files = [path for path in SOURCE.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    entries = sorted({path.relative_to(SOURCE).parts[0] for path in files})
    assert "worker" in entries
    assert len(entries) <= MOST_ENTRIES_AT_THE_TOP, entries


def test_no_files_import_each_other_in_a_circle() -> None:
    files = {_module(path): path for path in SOURCE.rglob("*.py")}
    arrows = {name: {each for each in _imports(path, set(files)) if each != name} for name, path in files.items()}
    assert "tenure.tasks.task" in arrows["tenure.tasks.job"]  # under TYPE_CHECKING
    TopologicalSorter(arrows).prepare()  # raises CycleError, which names the files


def test_no_test_breaks_where_the_path_has_a_space() -> None:
    """A shell would take the path of this Python for two words."""
    bare = "{sys." + "executable}"
    texts = {path.name: path.read_text("utf-8") for path in TESTS.rglob("*.py")}
    assert [name for name, text in texts.items() if bare in text] == []


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path, known: set[str]) -> Iterator[str]:
    """What a file imports at its top, for type checkers or not. An import inside a function runs later."""
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        match waiting.pop():
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name in known)
            case ast.ImportFrom(module=str(module), names=names):
                found = {f"{module}.{each.name}" for each in names}
                yield from (each if each in known else module for each in found if each in known or module in known)
            case node:
                waiting.extend(ast.iter_child_nodes(node))
