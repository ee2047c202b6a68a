"""`make test-django`: Django's own tests of its tasks, and ours, against the backend, on Django 6.0 and 6.1.

`python tests/django/tasks_suite/run.py [FOLDER]` makes one virtual environment per version in FOLDER (.venv/django),
which needs Python 3.12 or newer and a package index. The tests run on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from servers import shared_postgres  # noqa: E402

HERE = Path(__file__).resolve().parent
PYTHONS = ("python3.14", "python3.13", "python3.12")
VERSIONS = ("6.0", "6.1")

SETTINGS = """
SECRET_KEY = "not-a-secret-at-all-but-long-enough-for-the-checks-of-django"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "tenure.django", "shop", "tasks"]
DATABASES = {{"default": {database!r}}}
TENURE = {{"RETRY_MAX": 1, "RETRY_BASE": "1ms"}}
TASKS = {{
    "default": {{"BACKEND": "tenure.django.TenureBackend", "QUEUES": ["default", "mail"]}},
    "any": {{"BACKEND": "tenure.django.TenureBackend", "QUEUES": []}},
}}
USE_TZ = True
"""
MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
SHOP = {
    "shop/__init__.py": "",
    "shop/tasks/__init__.py": """
from tenure.django import jobs
from shop.tasks import tasks

@jobs.task
def native(n: int) -> int:
    return n
""",
    "shop/tasks/tasks.py": """
import psycopg
from django.db import OperationalError
from django.tasks import task

class Declined(Exception):
    pass

@task
def add(a, b=0):
    return a + b

@task
async def aadd(a, b=0):
    return a + b

@task
def loses():
    raise OperationalError("server closed the connection unexpectedly") from psycopg.OperationalError()

@task
def keep(values, *, also):
    return [values, also]

@task
def total(*numbers):
    return sum(numbers)

@task
def moved(n):
    return n

@task(takes_context=True)
def fails(context, times):
    seen.append(context.attempt)
    if context.attempt <= times:
        raise Declined(f"{context.attempt} of {times}")
    return seen

seen = []
fails = fails.using(retry=5)
""",
    "shop/views.py": "from django.tasks import task\n\n@task\ndef add_in_views(a, b):\n    return a + b\n",
    "shop/options.py": """
from django.tasks import task
from tenure import Retry

@task(retry=Retry(2, on=OSError), timeout="1m", unique="order:{order}")
def charge(order):
    pass
""",
}


def main(folder: Path) -> int:
    pythons = _pythons()
    if not pythons:
        print("Django's tasks were not tested: they need Python 3.12 or newer, and none was found")
        return 0
    asked = os.environ.get("DJANGO_VERSIONS", " ".join(VERSIONS)).split()
    # The oldest Django on the oldest Python, the newest on the newest.
    return max(_tested(pythons[0 if each == VERSIONS[0] else -1], each, folder / f"django-{each}") for each in asked)


def _pythons() -> list[str]:
    """One Python for each version that Django's tasks support, oldest first."""
    found: dict[tuple[int, ...], str] = {}
    named = [sys.executable, *map(shutil.which, PYTHONS), *(Path.home() / ".pyenv/versions").glob("3.*/bin/python3")]
    for each in filter(None, named):
        code = "import sys, venv; print(*sys.version_info[:2])"
        said = subprocess.run([each, "-c", code], capture_output=True, text=True, check=False)
        version = tuple(map(int, said.stdout.split()))
        if said.returncode == 0 and version >= (3, 12):
            found.setdefault(version, str(each))
    return [found[version] for version in sorted(found)]


def _tested(python: str, version: str, folder: Path) -> int:
    ours = folder / "bin/python"
    pip = [str(ours), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if not (folder / "ready").exists():
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([*pip, "install", "--editable", f"{ROOT}[django,postgres]", f"django=={version}.*"], check=True)
        found = subprocess.check_output(
            [str(ours), "-c", "import django; print(django.__version__)"], text=True
        ).strip()
        # Django's wheel has no tests.
        source = ["--no-deps", "--no-binary", "django", f"django=={found}", "--dest", str(folder / "source")]
        subprocess.run([*pip, "download", *source], check=True)
        (folder / "ready").touch()
    with tempfile.TemporaryDirectory() as made:
        site = Path(made)
        _unpack(folder / "source", site)
        for name, text in {"manage.py": MANAGE, **SHOP}.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        for suite in ("official.py", "ours.py"):
            shutil.copy(HERE / suite, site / suite)
        codes = [_run(ours, site, version, database) for database in _databases(site)]
    return max(codes)


def _unpack(source: Path, site: Path) -> None:
    (archive,) = source.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, _, inner = member.name.partition("/tests/tasks/")
            if inner and member.isfile():
                target = site / "tasks" / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]


def _databases(site: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [{"ENGINE": "django.db.backends.sqlite3", "NAME": str(site / "db.sqlite3")}]
    parts = urlsplit(shared_postgres().create_database())
    named = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    engine = {"ENGINE": "django.db.backends.postgresql", "PASSWORD": unquote(parts.password or "")}
    found.append({**engine, **named})
    return found


def _run(python: Path, site: Path, version: str, database: dict[str, object]) -> int:
    print(f"Django {version}, {str(database['ENGINE']).rpartition('.')[2]}:", flush=True)
    (site / "settings.py").write_text(SETTINGS.format(database=database))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "PYTHONPATH"))}
    command = [str(python), "manage.py", "test", "--noinput", "official", "ours"]
    return subprocess.run(command, cwd=site, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv/django"))
