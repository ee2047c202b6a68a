"""A live dashboard on a store, in processes of its own, and a browser that tolerates no error.

    with system(url, folder, "demo", "--web") as live, chromium() as browser, visits_of(browser) as visits:
        visits(live.url).goto("/try")

It ends with an AssertionError if a page raised an error, ran or fetched what its policy forbids, or asked another host,
if the dashboard complained, or if anything is left running.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from tenure.app.backends import open_store
from tenure.config import load
from tenure.ports import Store

WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=360, height=740)
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000
PATIENCE_SECONDS = 60.0
_FLAGS = [
    "--no-sandbox",  # it refuses to run as root with one
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
_TENURE = "import sys; from tenure.cli.main import run; sys.exit(run())"
_URL = re.compile(r"dashboard at (http://\S+?),? ")

expect.set_options(timeout=PATIENCE_MS)


# ── A live system ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class System:
    """A running `tenure demo --web` or `tenure dashboard`, and its store as seen from here."""

    url: str
    store: Store
    pid: int
    log: Path
    below: set[int] = field(default_factory=set[int])  #: pids that were ever seen below its own

    def workers(self) -> list[int]:
        """Pids of its live workers, and of no others."""
        below = {process.pid for process in psutil.Process(self.pid).children(recursive=True)}
        self.below.update(below)
        return [row.identity.pid for row in self.store.workers() if row.identity.pid in below]

    def complaints(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def system(
    store_url: str, folder: Path, *command: str, namespace: str = "tenure", by_way_of: str = "", **env: str
) -> Generator[System]:
    """`tenure COMMAND` at a free port, ended with the block. `by_way_of`: another URL by which it reaches the same
    store, which may be away now and then; without it, the command must not have complained of anything."""
    runtime = tempfile.mkdtemp(prefix="tn")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    ours = {
        "TENURE_NAMESPACE": namespace,
        "TENURE_RUNTIME_DIR": runtime,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    log = folder / "dashboard.log"
    store = open_store(load({"url": store_url, "namespace": namespace, "runtime_dir": runtime}))
    store.migrate()
    store.open()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _TENURE, *command, "--listen", "127.0.0.1:0", "--url", by_way_of or store_url],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**clean, **ours, **env},
            text=True,
        )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = _URL.match(f"{said.strip()} ")
        assert found, f"expected its URL, got {said!r}\n{log.read_text(errors='replace')}"
        live = System(found[1], store, process.pid, log)
        yield live
        live.workers()
        _stop(process)
        deadline = time.monotonic() + PATIENCE_SECONDS  # a process that nothing waits for is gone a moment later
        while left := [pid for pid in live.below if psutil.pid_exists(pid) and not _is_zombie(pid)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        assert not left, f"it has ended, and left running: {left}"
        assert process.returncode == 0, f"it ended with {process.returncode}\n{live.complaints()}"
        assert by_way_of or not live.complaints(), live.complaints()
    finally:
        _stop(process)
        process.stdout.close()
        store.close()
        shutil.rmtree(runtime, ignore_errors=True)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # its log says what each thread was doing
            process.wait()


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


# ── A browser ───────────────────────────────────────────────────────────────────────────────────────────────────


class NoBrowser(Exception):
    """There is no browser to drive. The tests then fail: skipped ones would prove nothing, and look good."""


def find_chromium() -> str:
    named = os.environ.get("TENURE_TEST_CHROMIUM", "")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise NoBrowser(
            f"the tests of the dashboard drive a browser: expected one of {', '.join(NAMES)} on PATH, or a path in "
            f"TENURE_TEST_CHROMIUM, got {named or 'none of them'}; install chromium (on Debian: apt install chromium)"
        )
    return found


@contextmanager
def chromium() -> Generator[Browser]:
    """Chromium, with a fresh profile. While it is open this thread counts as one with a running event loop."""
    program = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=_FLAGS)
        yield browser
        browser.close()


class Complaints:
    """What went wrong in a browser, except for what a test expects of it."""

    def __init__(self, context: BrowserContext, home: str) -> None:
        self.found: list[str] = []
        self._home = urlsplit(home).netloc
        self.excused: list[str] = []
        context.on("console", self._said)
        context.on("weberror", lambda error: self._add(f"error: {error.error}"))
        context.on("request", lambda request: self._asked(request.url))
        context.on("dialog", self._opened)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => "
            "console.error(`policy: ${e.effectiveDirective} forbids ${e.blockedURI}`))"
        )

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._add(f"console: {message.text}")

    def _opened(self, dialog: Dialog) -> None:
        self._add(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self._home:
            self._add(f"asked another host: {url}")

    def _add(self, complaint: str) -> None:
        if not any(text in complaint for text in self.excused):
            self.found.append(complaint)


class Visits:
    """Contexts of one browser; each is a separate person, with their own cookies."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: dict[BrowserContext, Complaints] = {}

    def __call__(self, url: str, **options: Any) -> Page:
        """A fresh page in a fresh context; `url` is the dashboard's."""
        given: dict[str, Any] = {"viewport": WIDE, "locale": "en-GB", **options}
        context = self._browser.new_context(base_url=url, **given)
        context.set_default_timeout(PATIENCE_MS)
        self._contexts[context] = Complaints(context, url)
        return context.new_page()

    def excuse(self, page: Page, *texts: str) -> None:
        """From now on these are no complaints: the answers of a test that asks for what it must not get."""
        self._contexts[page.context].excused += texts

    def found(self) -> list[str]:
        return [each for complaints in self._contexts.values() for each in complaints.found]

    def forgive(self) -> None:
        """What was found so far is what the test wanted."""
        for complaints in self._contexts.values():
            complaints.found.clear()

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@contextmanager
def visits_of(browser: Browser) -> Generator[Visits]:
    visits = Visits(browser)
    try:
        yield visits
        assert not visits.found(), "\n".join(visits.found())
    finally:
        visits.close()


def sign_in(page: Page, token: str) -> None:
    page.goto("/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(lambda url: urlsplit(url).path != "/login")
