"""A small Django project in a folder, and its `manage.py` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""

SETTINGS = """
SECRET_KEY = "not-a-secret-at-all-but-long-enough-for-the-checks-of-django"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "tenure.django", "orders"]
DATABASES = {{"default": {database!r}}}
TENURE = {tenure!r}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""

MODELS = """
from django.db import models

class Order(models.Model):
    paid = models.BooleanField(default=False)
"""

TASKS = """
from tenure.django import jobs
from orders.models import Order

@jobs.task(retry=1)
def pay(order: int) -> int:
    return Order.objects.filter(pk=order).update(paid=True)

@jobs.task(retry=1)
async def apay(order: int) -> int:
    return await Order.objects.filter(pk=order).aupdate(paid=True)
"""


@dataclass(frozen=True)
class Project:
    folder: Path

    def command(self, *argv: str) -> list[str]:
        return [sys.executable, str(self.folder / "manage.py"), *argv]

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "DJANGO_"))}
        return {**kept, **more}

    def manage(self, *argv: str, code: int = 0, cwd: Path | None = None, **environ: str) -> str:
        """Run `manage.py` to its end; its output and errors."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        done = subprocess.run(
            self.command(*argv), cwd=cwd or self.folder, env=self.environ(**environ), text=True, timeout=110, **pipes
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def python(self, code: str, **environ: str) -> str:
        """Run this code in the project's shell."""
        return self.manage("shell", "-v", "0", "-c", code, **environ)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def settings(database: Mapping[str, object], tenure: object = None, more: str = "") -> str:
    return SETTINGS.format(database=dict(database), tenure={} if tenure is None else tenure) + more


def new_project(
    folder: Path, database: Mapping[str, object], *, tenure: object = None, tasks: str = TASKS, more: str = ""
) -> Project:
    project = Project(folder)
    project.write(
        {
            "manage.py": MANAGE,
            "project/__init__.py": "",
            "project/settings.py": settings(database, tenure, more),
            "orders/__init__.py": "",
            "orders/models.py": MODELS,
            "orders/tasks.py": tasks,
        }
    )
    return project


def sqlite(folder: Path) -> dict[str, object]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")}


def postgres(url: str, **options: object) -> dict[str, object]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
        **options,
    }
