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


def test_its_own_tests_pass(shop: Path) -> None:
    command = [sys.executable, "manage.py", "test"]
    done = subprocess.run(command, cwd=shop, env=environ(), capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stderr
