"""The pages keep their word: what they show runs, what they name exists, and what exists is named."""

from __future__ import annotations

import ast
import doctest
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

import tenure
from tenure.cli.main import main
from tenure.core.lifecycle import VERBS, State
from tenure.django.registry import HAS_TASKS
from tenure.operations.sinks import KINDS

_NEED_TASKS = {f"tenure.django.{name}" for name in ("backend", "results", "running")}  # Django 6.0: make test-django
ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
README = (ROOT / "README.md").read_text()

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_BEFORE = re.compile(r"^(?:\$ |[A-Z_]+=\S+ |(?:[\d*/,-]+ ){5})+(?=tenure )")  # a prompt, a setting, when cron calls
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_NOUNS = {"jobs", "dead", "flows", "signals", "queues", "limits", "workers", "schedules"}
_COMMANDS = [sys.executable, "-c", "from tenure.cli.main import run; run()"]


def blocks(page: str, *languages: str) -> list[str]:
    return [text for language, text in _BLOCK.findall(page) if language in languages]


def shell_lines(page: str) -> list[str]:
    lines = "".join(blocks(page, "sh", "console", "text", "cron")).splitlines()
    return [_BEFORE.sub("", line) for line in lines]


def tenure_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_COMMANDS, *words],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _environment(folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    # A pytest in a test has temporary folders of its own: else, at its end, it deletes those of all earlier runs.
    mine = {"TENURE_RUNTIME_DIR": str(folder), "PYTEST_DEBUG_TEMPROOT": str(folder)}
    return {**inherited, "PYTHONPATH": str(ROOT / "src"), **mine}


# ── README ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the README's programs: each block begins with `# NAME.py`."""
    for text in blocks(README, "python"):
        name = re.match(r"# (\w+\.py)\n", text)
        assert name, f"a program of the README has no name:\n{text}"
        (tmp_path / name[1]).write_text(text)
    return tmp_path


@contextmanager
def worker_of(folder: Path) -> Iterator[None]:
    """`tenure worker hello`, until the block ends; then it drains."""
    process = subprocess.Popen(
        [*_COMMANDS, "worker", "hello"], cwd=folder, env=_environment(folder), stderr=subprocess.PIPE, text=True
    )
    try:
        yield
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_the_programs_of_the_readme_run_as_they_stand(written: Path) -> None:
    for program in sorted(path.name for path in written.glob("*.py")):
        run = subprocess.run(
            [sys.executable, program],
            cwd=written,
            env=_environment(written),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (run.returncode, run.stderr) == (0, ""), program
        expected = re.search(r"print\(.*#\s*(.+?),", (written / program).read_text())
        if expected is not None:
            assert run.stdout.strip() == expected[1]


def test_a_job_enqueued_as_the_readme_says_is_run_by_the_worker_it_starts(written: Path) -> None:
    (line,) = [line for line in shell_lines(README) if line.startswith("tenure enqueue")]
    words = shlex.split(line, comments=True)

    with worker_of(written):
        answer = tenure_command(written, *words[1:])

    assert answer.returncode == 0
    slow = r"greet [0-9a-f-]{36} is still queued after \S+; .*; still waiting\n"  # said if the worker takes its time
    assert re.fullmatch(rf"job [0-9a-f-]{{36}} is stored; waiting for it\n({slow})?", answer.stderr)
    assert answer.stdout.strip()


@pytest.mark.parametrize("line", [line for line in shell_lines(README) if line.startswith("make ")])
def test_every_make_target_of_the_readme_exists(line: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert shlex.split(line, comments=True)[1] in targets


# ── Commands ────────────────────────────────────────────────────────────────────────────────────────────────────


def command_lines() -> list[str]:
    """Every `tenure …` line in a block of a page, once."""
    found = dict.fromkeys(line for page in PAGES for line in shell_lines(page.read_text()))
    return [line for line in found if line.startswith("tenure ")]


def leaves(folder: Path) -> list[str]:
    """`worker`, `jobs list`, …: every command there is, as --help tells."""
    found: list[str] = []
    for name in _told_by(folder):
        found += [f"{name} {verb}" for verb in _told_by(folder, name)] or [name]
    return found


def _told_by(folder: Path, *words: str) -> list[str]:
    shown = tenure_command(folder, *words, "--help").stdout
    _, _, commands = shown.partition("─ Commands ─")
    return re.findall(r"^│ ([a-z]+) ", commands.partition("╰")[0], re.MULTILINE)


def options_on_pages() -> dict[str, set[str]]:
    """By command, the options that any page gives it."""
    found = defaultdict[str, set[str]](set)
    for line in command_lines():
        _, *words = shlex.split(line, comments=True)
        words = words[: words.index("--")] if "--" in words else words  # what follows is the command of a guard
        verb = words[:2] if words[0] in _NOUNS else words[:1]
        found[" ".join(verb)] |= {word.partition("=")[0] for word in words if word.startswith("-")} - {"--help"}
    return found


@pytest.mark.parametrize(("verb", "options"), options_on_pages().items())
def test_every_command_on_a_page_exists_with_its_options(
    verb: str, options: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb.split(), "--help"]) == 0

    assert options - set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out)) == set()


@pytest.mark.thorough
def test_every_command_is_named_on_a_page(tmp_path: Path) -> None:
    pages = "".join(page.read_text() for page in PAGES)

    found = leaves(tmp_path)

    assert {"worker", "jobs list", "queues pause"} <= set(found)
    assert [command for command in found if f"tenure {command}" not in pages] == []


# ── Words and links ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))

    for link in _LINK.findall(prose):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in [_slug(heading) for heading in _HEADING.findall(target.read_text())], link


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_verb_and_every_state_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()

    assert [verb for verb in VERBS if f"| **{verb}** |" not in glossary] == []
    assert [state for state in State if f"`{state}`" not in glossary] == []


@pytest.mark.parametrize("name", tenure.__all__)
def test_every_public_name_is_explained_where_it_is_defined_and_on_a_page(name: str) -> None:
    pages = "".join(page.read_text() for page in PAGES)

    assert (getattr(tenure, name).__doc__ or "").strip()
    assert re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", pages) or any(
        re.search(rf"\b{name}\b", text) for page in PAGES for text in blocks(page.read_text(), "python")
    )


def modules() -> list[str]:
    found = ["tenure", *(module.name for module in pkgutil.walk_packages(tenure.__path__, "tenure."))]
    return [name for name in found if HAS_TASKS or name not in _NEED_TASKS]


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_are_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert doctest.testmod(import_module(name)).failed == 0


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "adr").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_fits_a_page(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 40


def test_no_page_installs_tenure_from_an_index_that_does_not_have_it() -> None:
    root = Path(__file__).parents[2]
    texts = [root / "README.md", *root.glob("docs/*.md"), *root.glob("examples/**/*.md"), *root.glob("src/**/*.py")]
    wrong = [str(path) for path in texts if re.search(r'pip install (-U )?"?tenure\b', path.read_text("utf-8"))]

    assert len(texts) > 200
    assert wrong == []


#: Of messages in the table, what the code does not write as it stands there: values, and the words of other programs.
_VALUES = re.compile(r"…|\b(?:N|M|20|tenure of|stream|run tenure migrate|upgrade Tenure)\b")
_OF_OTHERS = re.compile(r"FATAL|invalid username|MISCONF|Address already in use|tenure: not found|is not installed")


def _templates(node: ast.AST) -> Iterator[str]:
    """The texts of the code, with `…` for their values."""
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in each.values)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def test_each_message_of_the_table_of_messages_is_one_of_the_code() -> None:
    ours = "\n".join(
        text for file in sorted((ROOT / "src").rglob("*.py")) for text in _templates(ast.parse(file.read_text()))
    )
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page.partition("| message | what to do |\n")[2].partition("\n\n")[0]
    quoted = [text for row in table.splitlines()[1:] for text in re.findall("`([^`]+)`", row.split(" | ")[0])]
    assert len(quoted) > 30

    longest = (max(_VALUES.split(text), key=len).strip(" :,(") for text in quoted if not _OF_OTHERS.search(text))
    assert [text for text in longest if text not in ours] == []


def sources() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("metrics.md", [f" {kind}" for kind in KINDS]),
        ("metrics.md", [f"`{name}`" for name in re.findall(r'\bRow\(\s*"([\w ]+)"', sources())]),
        (
            "operations.md",
            [f"`{name}`" for name in set(re.findall(r'(?:getLogger|logger)\("(tenure[\w.]*)"\)', sources()))],
        ),
    ],
    ids=["incidents", "duties", "loggers"],
)
def test_a_list_in_a_page_is_complete(page: str, names: list[str]) -> None:
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())

    assert len(names) > 10
    assert [name for name in names if name not in text] == []
