"""`tenure dashboard`, run as its users run it: where it listens, whom it lets in, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from servers import free_port, shared_postgres
from tenure import Tenure
from tenure.errors import InvalidOption
from tenure.stores.sqlite import SqliteStore
from waiting import until

pytestmark = pytest.mark.thorough

APP = """
from tenure import Tenure

jobs = Tenure()

@jobs.task
def add(a: int, b: int = 1) -> int:
    return a + b
"""
LEFT_BEHIND = """
from threading import Event, Thread, main_thread

def stay() -> None:
    main_thread().join()
    print("all over", flush=True)
    Event().wait()

Thread(target=stay).start()
"""
BROWSER = """
import httpx, sys
from pathlib import Path

Path("seen").write_text(httpx.get(sys.argv[1], trust_env=False, timeout=60).text)
"""
ANYWHERE = ("--listen", "127.0.0.1:0")
SECRET = "0123456789-secret-of-ada"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_NOTIFIER", "poll")
    (tmp_path / "shop.py").write_text(APP)
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.open()
    store.close()
    return tmp_path


def command(*argv: str) -> list[str]:
    return [sys.executable, "-c", "from tenure.cli.main import run; run()", "dashboard", *argv]


def refused(*argv: str, **environ: str) -> tuple[int, str]:
    """How it ends, and what it says, when it does not start."""
    found = subprocess.run(command(*argv), env={**os.environ, **environ}, capture_output=True, text=True, timeout=60)
    assert found.stdout == ""
    return found.returncode, found.stderr


class Dashboard:
    def __init__(self, process: subprocess.Popen[str], said: str, log: Path) -> None:
        self.process, self.said, self._log = process, said, log
        found = re.search(r"http://[^\s\"]+", said)
        assert found, self.log
        self.url = found[0]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def running(folder: Path, *argv: str, **environ: str) -> Iterator[Dashboard]:
    log = folder / "dashboard.log"
    with log.open("w") as err:
        process = subprocess.Popen(
            command(*argv), env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=err, text=True
        )
    assert process.stdout is not None
    try:
        yield Dashboard(process, process.stdout.readline(), log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_well_also_while_somebody_watches(folder: Path, number: signal.Signals) -> None:
    with running(folder, *ANYWHERE) as dashboard, dashboard.client() as client, ExitStack() as streams:
        for _ in range(3):
            stream = streams.enter_context(client.stream("GET", "/live", params={"at": "/"}))
            assert stream.status_code == 200

        assert dashboard.said == f"dashboard at {dashboard.url}\n"
        assert dashboard.end(number) == 0
        assert "Traceback" not in dashboard.log, dashboard.log
        assert dashboard.process.stdout is not None
        assert dashboard.process.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_an_app_leaves_running_is_waited_for_until_it_is_told_to_end_once_more(
    folder: Path, number: signal.Signals
) -> None:
    (folder / "shop.py").write_text(APP + LEFT_BEHIND)
    with running(folder, "shop", *ANYWHERE) as dashboard:
        dashboard.process.send_signal(number)
        assert dashboard.process.stdout is not None
        assert dashboard.process.stdout.readline() == "all over\n"
        deadline = time.monotonic() + 60
        while dashboard.process.poll() is None:  # Python may miss a Ctrl-C just as it begins to wait
            assert time.monotonic() < deadline
            dashboard.process.send_signal(number)
            time.sleep(0.1)


def test_a_browser_that_does_not_return_before_it_has_the_page_is_given_it(folder: Path) -> None:
    (folder / "browser.py").write_text(BROWSER)
    with running(folder, *ANYWHERE, "--open", BROWSER=f"{shlex.quote(sys.executable)} browser.py %s"):
        seen = folder / "seen"
        until(lambda: seen.exists() and "</html>" in seen.read_text(), "the browser to have the page")


def test_with_json_it_says_one_line_of_json(folder: Path) -> None:
    with running(folder, "shop", *ANYWHERE, "--json") as dashboard, dashboard.client() as client:
        assert json.loads(dashboard.said) == {"url": dashboard.url, "store": f"sqlite:///{folder}/tenure.db"}
        deadline = time.monotonic() + 60  # if a store takes longer than two seconds, it says that the store is away
        while client.get("/healthz").status_code != 200:
            assert time.monotonic() < deadline, dashboard.log
        assert client.get("/healthz", headers={"Host": "rebound.example"}).status_code == 421


def test_another_address_without_tokens_is_refused_with_a_line_that_helps(folder: Path) -> None:
    for argv in (("--listen", "0.0.0.0:0"), ("--listen", "[::]:0"), ("--listen", "example.com:3000")):
        code, said = refused(*argv)
        assert code == 2
        found = re.search(r"export TENURE_TOKENS=(me:admin:\w{48})$", said.strip())
        assert found, said

    with running(folder, "--listen", "0.0.0.0:0", TENURE_TOKENS=found[1]) as dashboard:
        inside = dashboard.url.replace(dashboard.url.split("//")[1].rpartition(":")[0], "127.0.0.1")
        secret = found[1].rpartition(":")[2]
        answers = [
            httpx.get(f"{inside}/api/stats", headers=headers, trust_env=False, timeout=60).status_code
            for headers in ({}, {"Authorization": f"Bearer {secret}"})
        ]
        assert answers == [401, 200]
        assert secret not in dashboard.log + dashboard.said


def test_behind_a_proxy_it_wants_tokens_and_goes_by_what_the_proxy_says(folder: Path) -> None:
    code, said = refused(*ANYWHERE, "--behind-proxy")
    assert (code, "through a proxy" in said) == (2, True)

    via = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
    tokens = f"ada:admin:{SECRET}"
    with running(folder, *ANYWHERE, "--behind-proxy", TENURE_TOKENS=tokens) as dashboard:
        with dashboard.client(**via, Origin=dashboard.url.replace("http:", "https:")) as client:
            page = client.get("/login")
            assert "Secure" in page.headers["set-cookie"]
            headers = {"Cookie": page.headers["set-cookie"].partition(";")[0]}
            csrf = re.search(r'name="csrf" value="(\w+)"', page.text)
            assert csrf
            sent = {"csrf": csrf[1], "token": SECRET}
            assert client.post("/login", data=sent, headers=headers).status_code == 303
        assert SECRET not in dashboard.log
    with running(folder, *ANYWHERE, TENURE_TOKENS=tokens) as dashboard, dashboard.client(**via) as client:
        assert "Secure" not in client.get("/login").headers["set-cookie"]


def test_an_address_somebody_else_has_is_told(folder: Path) -> None:
    with running(folder, *ANYWHERE) as dashboard:
        code, said = refused("--listen", dashboard.url.removeprefix("http://"))

    assert code == 2
    assert "can't be used: Address already in use; use another" in said


def test_without_the_extra_it_says_what_to_install(folder: Path) -> None:
    for missing in ("fastapi", "uvicorn", "jinja2"):
        blocked = f"import sys; sys.modules[{missing!r}] = None; from tenure.cli.main import run; run()"
        found = subprocess.run(
            [sys.executable, "-c", blocked, "dashboard", *ANYWHERE], capture_output=True, text=True, timeout=60
        )
        assert found.returncode == 2
        assert found.stderr == f'{missing} is not installed: pip install ".[web]" in the checkout of Tenure\n'


def test_a_store_that_is_away_is_said_and_it_starts_all_the_same(folder: Path) -> None:
    url = f"redis://:hunter2@127.0.0.1:{free_port()}/0"

    with running(folder, *ANYWHERE, TENURE_URL=url) as dashboard, dashboard.client() as client:
        assert "starts anyway" in dashboard.log
        assert client.get("/healthz").status_code == 503
        assert "hunter2" not in dashboard.log + client.get("/").text + dashboard.said
        assert dashboard.end() == 0


def test_what_will_not_pass_by_itself_is_told_at_once(folder: Path) -> None:
    unmigrated = f"{shared_postgres().url()}"

    assert refused("--url", "mysql://db/shop")[0] == 2
    assert "nothing was ever enqueued there" in refused("--url", "sqlite:///other.db")[1]
    code, said = refused("--url", unmigrated, TENURE_NAMESPACE="never_migrated")
    assert (code, "tenure migrate" in said) == (1, True)
    code, said = refused("nosuch")
    assert (code, "nosuch" in said) == (2, True)


@pytest.mark.usefixtures("unhurried")
def test_an_app_mounts_it_in_one_line(folder: Path) -> None:
    from web.test_security import running as serving

    def staff(request: Request) -> str | None:
        return request.headers.get("x-role")

    jobs = Tenure()
    mounted: Any = jobs.dashboard(auth=staff)
    with serving(Starlette(routes=[Mount("/jobs", app=mounted)]), mounted) as place, jobs:
        assert place.client().get("/jobs/api/stats").status_code == 401
        assert place.client(**{"X-Role": "read"}).get("/jobs/api/stats").status_code == 200
        assert place.client().get("/jobs/healthz").status_code == 200


def test_an_app_without_the_extra_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenure.web.dashboard", None)
    monkeypatch.delitem(sys.modules, "tenure.web", raising=False)

    with pytest.raises(InvalidOption, match=r'pip install "\.\[web\]" in the checkout'):
        Tenure().dashboard()


def queued(client: httpx.Client) -> int:
    assert client.get("/jobs/").status_code == 200
    counts: dict[str, int] = client.get("/jobs/api/v1/stats").raise_for_status().json()["counts"]
    return counts["queued"]


@pytest.mark.usefixtures("unhurried")
def test_a_mounted_one_shows_the_store_that_its_app_uses_now(folder: Path) -> None:
    from web.test_security import running as serving

    jobs = Tenure(f"sqlite:///{folder}/tenure.db")

    @jobs.task
    def greet() -> None: ...

    mounted: Any = jobs.dashboard(auth=lambda request: "admin")
    host = Starlette(routes=[Mount("/jobs", app=mounted)])
    with serving(host, mounted) as place:
        with jobs:
            assert queued(place.client()) == 0
            for _ in range(2):
                with jobs.testing() as queue:
                    place.client().post("/jobs/api/v1/jobs", json={"task": "greet"}).raise_for_status()
                    assert len(queue.enqueued(greet)) == 1
                    assert queued(place.client()) == 1
        with jobs:
            assert queued(place.client()) == 0
