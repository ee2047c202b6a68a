"""What a terminal gets: nothing that acts on it, no endless lines, and no traceback if its other end is gone."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.factories import put
from tenure.cli.output import pairs, print_error, print_line, show_json, table, visible
from tenure.stores.sqlite import SqliteStore

EVIL = "red \x1b[31m \x9b2J \x1b]0;title\x07 back\u202espace\x7f\r"


SHOWS: dict[str, Callable[[str], None]] = {
    "line": print_line,
    "error": print_error,
    "pairs": lambda text: pairs([("output", text)]),
    "table": lambda text: table(("why",), [[text]]),
}


@pytest.mark.parametrize("show", SHOWS.values(), ids=SHOWS)
def test_what_a_job_printed_does_not_act_on_the_terminal(
    show: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show(EVIL)

    seen = "".join(capsys.readouterr())
    assert "red " in seen
    assert all(each.isprintable() or each == "\n" for each in seen)
    assert r"\x1b[31m" in seen


def test_json_keeps_every_character_and_shows_none_that_acts(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"output": EVIL, "name": "Zoë ☃"})

    seen = capsys.readouterr().out
    assert all(each.isprintable() or each == "\n" for each in seen)
    assert json.loads(seen) == {"output": EVIL, "name": "Zoë ☃"}
    assert "Zoë ☃" in seen


def test_tabs_and_lines_stay_and_so_does_every_script() -> None:
    assert visible("a\tb\nnaïve 名前 🎉") == "a\tb\nnaïve 名前 🎉"


@pytest.mark.parametrize(
    ("output", "says"), [("/dev/full", "the output could not be written: No space left"), ("", "")]
)
@pytest.mark.parametrize("words", [["schedules", "preview", "--every", "1h", "-n", "900"], ["--version"]])
def test_an_output_that_takes_nothing_is_a_sentence_and_no_traceback(
    output: str, says: str, words: list[str], tmp_path: Path
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    code = "from tenure.cli.main import run; run()"
    redirect = f">{output}" if output else ">&-"
    command = ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-c", code, *words]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert "Traceback" not in done.stderr
    assert says in done.stderr
    assert done.returncode == (1 if says else 0)


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_json_keeps_every_character_whatever_the_encoding_of_the_output(tmp_path: Path, encoding: str) -> None:
    url, name = f"sqlite:///{tmp_path}/tenure.db", "Zoë ☃ 🎉"
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.open()
    put(store, payload=json.dumps({"name": name}))
    store.close()
    command = [sys.executable, "-c", "from tenure.cli.main import run; run()", "jobs", "list", "--json", "--url", url]
    path = os.pathsep.join(path for path in sys.path if path)
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": encoding}

    done = subprocess.run(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, check=True)

    assert json.loads(done.stdout.decode(encoding))["jobs"][0]["payload"] == {"name": name}
    assert (name.encode() in done.stdout) is (encoding == "utf-8")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_log_lines_in_json_keep_every_character_whatever_the_encoding_of_the_output(encoding: str) -> None:
    code = """
import logging
from tenure.cli import logs
from tenure.config import load
logs.follow(load({"log_format": "json"}))
logging.getLogger("shop").warning("Zoë", extra={"weather": "☃", "other": {1: object}})
"""
    path = os.pathsep.join(path for path in sys.path if path)
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": encoding}

    done = subprocess.run([sys.executable, "-c", code], env=environ, stderr=subprocess.PIPE, check=True)

    line = json.loads(done.stderr.decode(encoding))
    assert (line["message"], line["weather"]) == ("Zoë", "☃")
    assert ("Zoë".encode() in done.stderr) is (encoding == "utf-8")


MANY = ["schedules", "preview", "--every", "1h", "-n", "900"]
LIMIT = 1 << 30  #: of the size of a file, so large that only one that is made for it reaches it


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environ(request: pytest.FixtureRequest) -> dict[str, str]:
    path = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": request.param}


def test_an_output_that_takes_only_a_part_is_a_sentence(tmp_path: Path, environ: dict[str, str]) -> None:
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))\n"
        "from tenure.cli.main import run; run()"
    )
    with (tmp_path / "out").open("ab") as out:
        out.truncate(LIMIT - 1000)
        done = subprocess.run(
            [sys.executable, "-c", code, *MANY],
            cwd=tmp_path,
            env=environ,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert (tmp_path / "out").stat().st_size == LIMIT
    assert (done.returncode, done.stderr) == (1, "the output could not be written: File too large\n")


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="only Linux makes a pipe small")
def test_a_reader_that_leaves_within_a_write_is_known_by_the_exit_code(tmp_path: Path, environ: dict[str, str]) -> None:
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    command = [sys.executable, "-c", "from tenure.cli.main import run; run()", *MANY]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=theirs, stderr=subprocess.PIPE, text=True
    ) as listing:
        os.close(theirs)
        assert os.read(ours, 1)  # the write has begun, and is too large for the pipe
        os.close(ours)
        _, err = listing.communicate()

    assert (listing.returncode, err) == (141, "")


def test_unbuffered_output_appears_at_once(tmp_path: Path) -> None:
    code = """
import sys
from tenure.cli import main

def waits(argv):
    for stream in (sys.stdout, sys.stderr):
        stream.write("half a li")
    sys.stdin.read()
    return 0

main.main = waits
main.run()
"""
    path = os.pathsep.join(path for path in sys.path if path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environ, **pipes) as waiting:  # type: ignore[call-overload]
        seen = [stream.read(9) for stream in (waiting.stdout, waiting.stderr)]
        waiting.communicate()

    assert seen == [b"half a li"] * 2
    assert waiting.returncode == 0


def test_a_question_without_a_standard_input_is_not_asked(tmp_path: Path) -> None:
    code = "from tenure.cli.main import run; run()"
    words = ["jobs", "cancel", "--state", "queued", "--url", f"sqlite:///{tmp_path}/tenure.db"]
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.open()
    put(store)
    store.close()
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", code, *words]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, "use --yes" in done.stderr) == (2, True), done.stderr
