"""examples/django_shop: what its README says works, and who sees the dashboard of a Django site."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from servers import free_port
from waiting import until

SHOP = Path(__file__).resolve().parents[2] / "examples/django_shop"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A copy: the example writes its database into its own folder."""
    return shutil.copytree(SHOP, tmp_path / "shop", ignore=shutil.ignore_patterns("db.*", "__pycache__"))


def environ(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")} | {"PATH": path} | more


@pytest.fixture
def site(shop: Path) -> Iterator[httpx.Client]:
    port = free_port()
    process = subprocess.Popen(["sh", str(shop / "run.sh")], env=environ(PORT=str(port)), start_new_session=True)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

        def answers() -> bool:
            assert process.poll() is None, "run.sh has ended"
            try:
                return client.get("/").status_code == 200
            except httpx.TransportError:
                return False

        try:
            until(answers, "the site")
            yield client
        finally:
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
            process.wait(60)


def csrf(page: str) -> str:
    (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    return token


def test_the_site_its_worker_and_its_dashboard_run(site: httpx.Client) -> None:
    asked = site.get("/jobs/")
    assert (asked.status_code, asked.headers["location"]) == (303, "/admin/login/?next=/jobs/")

    site.post("/", data={"csrfmiddlewaretoken": csrf(site.get("/").text)})
    until(lambda: "Order 1: paid" in site.get("/").text, "the worker to pay for it")

    form = {"username": "admin", "password": "admin", "csrfmiddlewaretoken": csrf(site.get("/admin/login/").text)}
    assert site.post("/admin/login/", data=form).status_code == 302
    assert '<a href="/jobs/">Jobs</a>' in site.get("/admin/").text
    assert site.get("/jobs/").status_code == 200
    assert "pay" in site.get("/jobs/jobs").text


NO_STAFF = """
from importlib import import_module
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
user = get_user_model().objects.create_user("bob")
session = import_module(settings.SESSION_ENGINE).SessionStore()
session.update({SESSION_KEY: str(user.pk), BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[0],
                HASH_SESSION_KEY: user.get_session_auth_hash()})
session.save()
print(session.session_key)
"""


def test_a_user_who_is_not_staff_is_refused_and_not_asked_to_log_in(shop: Path, site: httpx.Client) -> None:
    command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", NO_STAFF]
    done = subprocess.run(command, cwd=shop, env=environ(), capture_output=True, text=True, timeout=110, check=True)
    site.cookies.set("sessionid", done.stdout.strip())

    for path in ("/jobs/", "/jobs/api/v1/queues"):
        refused = site.get(path)
        assert refused.status_code == 403, path
        assert "bob is not staff" in refused.text


BELOW = """
import asyncio, httpx
from importlib import import_module
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.core.asgi import get_asgi_application
from django.test import override_settings
from tenure.django.asgi import with_dashboard

user = get_user_model().objects.create_superuser("eve")
session = import_module(settings.SESSION_ENGINE).SessionStore()
session.update({SESSION_KEY: str(user.pk), BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[0],
                HASH_SESSION_KEY: user.get_session_auth_hash()})
session.save()
site = with_dashboard(get_asgi_application(), "jobs/")

async def ask(root, path, **cookies):
    transport = httpx.ASGITransport(site, root_path=root)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", cookies=cookies) as client:
        answer = await client.get(path)
        print(answer.status_code, answer.headers.get("location"))

async def main():
    for root, path in ("", "/jobs"), ("/shop", "/shop/jobs"), ("/shop", "/jobs"):
        await ask(root, f"{path}/jobs?state=dead&state=queued")
    await ask("/shop", "/shop/jobs/jobs", sessionid=session.session_key)
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
        for _ in range(2):
            await ask("", "/jobs/jobs", sessionid=session.session_key)

asyncio.run(main())
try:
    with_dashboard(site, "/")
except Exception as error:
    print(error)
"""


def test_the_dashboard_below_a_path_of_the_server_and_after_a_new_secret_key(shop: Path) -> None:
    pipes: dict[str, Any] = {"env": environ(), "capture_output": True, "text": True, "timeout": 110}
    for command in (["migrate", "-v", "0"], ["shell", "-v", "0", "-c", BELOW]):
        done = subprocess.run([sys.executable, "manage.py", *command], cwd=shop, check=False, **pipes)
        assert done.returncode == 0, done.stderr

    back = "jobs/jobs%3Fstate%3Ddead%26state%3Dqueued"
    assert done.stdout.splitlines() == [
        f"303 /admin/login/?next=/{back}",
        f"303 /shop/admin/login/?next=/shop/{back}",
        f"303 /shop/admin/login/?next=/shop/{back}",
        "200 None",
        "200 None",
        "200 None",
        "with_dashboard: path: expected one below the site's, like \"/jobs\", got '/'",
    ]


def test_its_own_tests_pass(shop: Path) -> None:
    command = [sys.executable, "manage.py", "test"]
    done = subprocess.run(command, cwd=shop, env=environ(), capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stderr
