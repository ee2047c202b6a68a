"""What docs/schedules.md shows runs as it stands, and comes out as it says."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import psycopg
import pytest

from docs.test_pages import ROOT, blocks, tenure_command
from servers import shared_postgres
from tenure.operations.alerts import PATIENCE
from tenure.operations.sinks import KINDS, signature
from tenure.ports.schedules import OVERLAPS

pytestmark = pytest.mark.thorough

PAGE = (ROOT / "docs" / "schedules.md").read_text()
SECRET = "whsec_" + "c2VjcmV0" * 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the programs of the page; every command and program there uses one store."""
    for program in blocks(PAGE, "python"):
        (tmp_path / program.split(maxsplit=2)[1]).write_text(program)
    report = tmp_path / "report.sh"
    report.write_text("#!/bin/sh\necho sent\n")
    report.chmod(0o755)
    tenure = tmp_path / "tenure"
    tenure.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "from tenure.cli.main import run; run()" "$@"\n'
    )
    tenure.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path}/tenure.db")
    monkeypatch.setenv("TENURE_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def said(command: str, *, code: int = 0) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


def half_a_day_away(text: str) -> str:
    """The same with its daily tick at another hour: what is called five minutes before it is called for the next one,
    and two calls must not stand on either side of that moment."""
    hour = (datetime.now(ZoneInfo("Europe/Paris")).hour + 12) % 24
    assert "0 6 * * *" in text
    return text.replace("0 6 * * *", f"0 {hour} * * *")


@pytest.mark.parametrize("name", ["reports.py", "invoices.py", "payouts.py"])
def test_a_program_prints_what_it_says(name: str, folder: Path) -> None:
    if name == "reports.py":
        (folder / name).write_text(half_a_day_away((folder / name).read_text()))
    told = re.findall(r"^ *print\(.*  # (.+)$", (folder / name).read_text(), re.MULTILINE)

    printed = said(f"{shlex.quote(sys.executable)} {name} 2>&-").splitlines()  # a guard may say there that it is late

    assert told
    for line, expected in zip(printed, told, strict=True):
        before, _, after = expected.partition("…")
        assert line.startswith(before) and line.endswith(after)


def test_the_first_program_declares_what_the_commands_below_it_name(folder: Path) -> None:
    assert "made: daily_report, sync-eu, sync-us" in said("tenure schedules declare shop")

    for command in blocks(PAGE, "sh"):
        for line in command.splitlines():
            if re.match(r"tenure schedules (list|trigger|add|remove|rename|pause|resume|backfill|history)", line):
                said(line + " --yes" if " remove " in line else line)
    assert "as declared" in said("TENURE_RELEASE=41 tenure schedules declare shop --force")
    assert "nothing is overdue" in said("tenure schedules overdue --grace 1h")


def test_a_preview_and_the_lint_say_what_the_page_shows(folder: Path) -> None:
    said("tenure schedules declare shop")
    (shown,) = [block for block in blocks(PAGE, "console") if "preview" in block]

    for example in shown.split("$ ")[1:]:
        command, *expected = example.splitlines()
        lines = [_without_days(line) for line in said(command).splitlines()]
        assert [line for line in map(_without_days, expected) if line not in lines] == []


def _without_days(line: str) -> str:
    """How far off a tick is, or how long ago, depends on when one asks."""
    return re.sub(r"\t(in )?\d+[dhms]( ago)?\t", "\t", line)


def test_a_crontab_line_runs_its_command_once_a_tick(folder: Path) -> None:
    (line,) = re.findall(r"^0 6 \* \* \* (tenure guard .+)$", PAGE, re.MULTILINE)
    line = half_a_day_away(line.replace("/srv/shop", str(folder)))

    assert "sent" in said(line)
    assert re.search("daily-report: skipped: the tick of .* has already run", said(line))


def test_the_crontab_line_that_alerts_ends_with_1_only_if_something_is_wrong(folder: Path) -> None:
    (line,) = re.findall(r"^\*/5 \* \* \* \* (tenure check --alert) ", PAGE, re.MULTILINE)
    said("tenure migrate")

    assert "WRONG" not in said(line)
    for _ in range(2):
        said("tenure guard bad --every 1d --force -- false", code=1)
    assert "bad has failed 2 times in a row" in said(line, code=1)


@pytest.mark.parametrize(
    ("options", "command", "code"),
    [
        ("", "sh -c 'exit 3'", 3),
        ("", "sh -c 'kill -9 $$'", 137),
        ("--timeout 100ms", "sleep 30", 124),
        ("", "/etc/passwd", 126),
        ("", "no-such-command", 127),
        ("--skip-exit 9", "true", 0),
    ],
)
def test_a_guard_ends_with_the_code_of_the_table(options: str, command: str, code: int, folder: Path) -> None:
    said(f"tenure guard it --every 1d {options} -- {command}", code=code)

    skip = 9 if "skip" in options else 0
    assert "has already run" in said(f"tenure guard it --every 1d {options} -- {command}", code=skip)


def test_the_queries_of_the_page_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = [*re.findall(r'^psql "\$TENURE_URL" -c "(.+)"$', PAGE, re.MULTILINE), *blocks(PAGE, "sql")]
    (here,) = re.findall(r'^sqlite3 .* "(.+)"$', PAGE, re.MULTILINE)
    said("tenure guard it --every 1d -- true")
    ask = "import apsw, sys; print(list(apsw.Connection('tenure.db').execute(sys.argv[1])))"
    assert "'success'" in said(shlex.join([sys.executable, "-c", ask, here]))

    url = shared_postgres().create_database()
    monkeypatch.setenv("TENURE_URL", url)
    said("tenure migrate && tenure guard sync-eu --every 1d -- true")
    with psycopg.connect(url) as connection:
        answers = [connection.execute(query.encode()).fetchall() for query in queries]
    assert [len(rows) for rows in answers] == [1, 1, 0]


def test_the_webhook_of_the_page_knows_what_tenure_signs_and_nothing_else(folder: Path) -> None:
    is_from_tenure = runpy.run_path(str(folder / "hook.py"))["is_from_tenure"]

    def signed(age: int) -> dict[str, str]:
        at = str(int(time.time()) - age)
        return {"webhook-id": "1", "webhook-timestamp": at, "webhook-signature": signature(SECRET, "1", at, b"{}")}

    assert is_from_tenure(SECRET, signed(0), b"{}")
    assert not is_from_tenure(SECRET, signed(0), b"{ }")
    assert not is_from_tenure(SECRET, signed(1000), b"{}")


def test_every_kind_of_alert_and_every_policy_has_its_row(folder: Path) -> None:
    assert [kind for kind in KINDS if f"| `{kind}` | " not in PAGE] == []
    assert [overlap for overlap in OVERLAPS if f"| `{overlap}`" not in PAGE] == []
    assert f"tried {PATIENCE.max_failures} times" in PAGE


def test_every_command_of_schedules_is_shown(folder: Path) -> None:
    shown = tenure_command(folder, "schedules", "--help").stdout

    commands = re.findall(r"^│ ([a-z]+) ", shown.partition("─ Commands ─")[2], re.MULTILINE)
    assert {"list", "trigger"} <= set(commands)
    for command in commands:
        assert f"tenure schedules {command}" in PAGE or f"`{command}`" in PAGE, command
