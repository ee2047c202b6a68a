"""What docs/dashboard.md and the example beside it show works as it stands, and answers what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

from docs.test_pages import ROOT, blocks
from servers import free_port
from tenure.core.lifecycle import State

pytestmark = pytest.mark.thorough

PAGE = (ROOT / "docs" / "dashboard.md").read_text()
_TENURE = [sys.executable, "-c", "from tenure.cli.main import run; run()"]
_PATIENCE = 60.0
_DJANGO = """
SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}}
"""
_USERS = """
import django
django.setup()
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command

call_command("migrate", verbosity=0)
for name, staff, above in [("ada", True, True), ("grace", True, False), ("bob", False, False)]:
    user = User.objects.create_user(name, is_staff=staff, is_superuser=above)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    print(session.session_key)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the programs of the page; what runs there uses one store."""
    for program in blocks(PAGE, "python"):
        (tmp_path / program.split(maxsplit=2)[1]).write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT / "examples"), str(tmp_path)]))
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path}/tenure.db")
    monkeypatch.setenv("TENURE_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@contextmanager
def running(*command: str) -> Generator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode in (0, -15), said


@contextmanager
def served(program: str) -> Generator[httpx.Client]:
    """An ASGI app, by uvicorn, and a client of it."""
    port = free_port()
    command = ["-m", "uvicorn", "--log-level", "warning", "--timeout-graceful-shutdown", "1", "--port", str(port)]
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    with client, running(sys.executable, *command, program):
        until_it_answers(client)
        yield client


def until_it_answers(client: httpx.Client) -> None:
    ends = monotonic() + _PATIENCE
    while True:
        try:
            client.get("/jobs/healthz")
            return
        except httpx.TransportError:
            assert monotonic() < ends, f"nobody answers at {client.base_url}"
            sleep(0.05)


def tour() -> list[tuple[str, str]]:
    """Every command of the page's API part, and what it says it answers."""
    shown = "".join(blocks(PAGE, "console"))
    examples = [each.partition("\n") for each in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]]
    return [(command, expected.strip()) for command, _, expected in examples]


def as_said(expected: str, answer: str) -> bool:
    """`…` stands for anything."""
    return re.search(".*?".join(map(re.escape, expected.split("…"))), answer, re.DOTALL) is not None


def test_every_request_of_the_page_is_answered_as_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tokens,) = re.findall(r"^export TENURE_TOKENS=(ci:\S+)$", PAGE, re.MULTILINE)
    monkeypatch.setenv("TENURE_TOKENS", tokens)
    place = f"127.0.0.1:{free_port()}"
    exports = list[str]()
    assert len(tour()) > 15

    with running(*_TENURE, "worker", "shop"), running(*_TENURE, "dashboard", "shop", "--listen", place):
        with httpx.Client(base_url=f"http://{place}") as client:
            until_it_answers(client)
        for command, expected in tour():
            if command.startswith("export "):
                exports.append(command.replace("127.0.0.1:3000", place))
                continue
            script = "\n".join([*exports, command])
            ends = monotonic() + _PATIENCE
            while True:  # a job that was enqueued a line before is on its way
                answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False).stdout
                if as_said(expected, answer):
                    break
                assert monotonic() < ends, (command, expected, answer)
                sleep(0.1)


def test_the_example_lets_its_users_in_by_their_roles(folder: Path) -> None:
    with served("dashboard_fastapi:app") as client:
        assert client.get("/jobs/").status_code == 401
        assert client.get("/jobs/", auth=("ada", "wrong")).status_code == 401
        assert client.get("/jobs/", auth=("grace", "tenure")).status_code == 200
        assert "ada" in client.get("/jobs/queues", auth=("ada", "tenure")).text

        job = client.post("/greetings/Ada", auth=("grace", "tenure")).json()["job"]

        def seen_by(name: str) -> dict[str, object]:
            found: dict[str, object] = client.get(f"/jobs/api/v1/jobs/{job}", auth=(name, "tenure")).json()
            return found

        assert seen_by("ada")["args"] == {"name": "Ada"}
        assert seen_by("grace")["args"] is None
        assert seen_by("grace")["meta"] == {"asked_by": "grace"}
        ends = monotonic() + _PATIENCE
        while seen_by("ada")["state"] != State.COMPLETED:
            assert monotonic() < ends
            sleep(0.05)
        for name, status in (("grace", 403), ("ada", 200)):
            client.cookies.clear()  # a program has none; who has looked at a page has one, and needs its form's token
            pausing = client.post("/jobs/api/v1/queues/default/pause", auth=(name, "tenure"), json={})
            assert pausing.status_code == status


def test_the_short_hook_of_the_page_is_a_hook(folder: Path) -> None:
    (known,) = re.findall(r'staff = {"(Bearer .+)": "admin"}', PAGE)

    with served("web:app") as client:
        assert client.get("/jobs/").status_code == 403
        assert client.get("/jobs/", headers={"authorization": known}).status_code == 200


def test_django_lets_its_staff_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "settings.py").write_text(_DJANGO)
    (folder / "urls.py").write_text("urlpatterns = []\n")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    ada, grace, bob = subprocess.check_output([sys.executable, "-c", _USERS], text=True).split()

    with served("asgi:application") as client:

        def of(key: str) -> dict[str, str]:
            return {"cookie": f"sessionid={key}"}

        assert [client.get("/jobs/", headers=of(key)).status_code for key in (ada, grace, bob)] == [200, 200, 403]
        assert client.get("/jobs/").status_code == 403
        assert [client.get("/jobs/audit", headers=of(key)).status_code for key in (ada, grace)] == [200, 403]


@pytest.mark.parametrize("name", ["starlette", "plain"])
def test_the_other_ways_to_mount_it_work(name: str, folder: Path) -> None:
    (route,) = re.findall(r"\| Starlette \| `(.+)` among", PAGE)
    (make, call) = re.findall(r"\| any ASGI app \| `(.+?)`, .*: `(.+)` \|", PAGE)[0]
    head = "from shop import jobs\nfrom tenure.web.access import LOCAL\n\ndef role_of(request): return LOCAL\n"
    programs = {
        "starlette": "from starlette.applications import Starlette\nfrom starlette.routing import Mount\n"
        f"app = Starlette(routes=[{route}])\n",
        "plain": f"{make}\n\nasync def app(scope, receive, send):\n    if scope['type'] == 'http':\n        {call}\n",
    }
    (folder / "mounted.py").write_text(head + programs[name])

    with served("mounted:app") as client:
        page = client.get("/jobs/")

        assert page.status_code == 200
        assets = re.findall(r'(?:href|src)="(/jobs/static/[^"]+)"', page.text)
        assert assets
        for asset in assets:
            assert client.get(asset).status_code == 200
        assert 'href="/jobs/dead"' in page.text
