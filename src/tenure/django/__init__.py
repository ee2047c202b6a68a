"""Tenure in a Django project: its settings, its tasks, its transactions and its tests.

# settings.py
INSTALLED_APPS = [..., "tenure.django"]
TENURE = {"CONCURRENCY": 10}  # the jobs are in the database "default"
TASKS = {"default": {"BACKEND": "tenure.django.TenureBackend"}}  # Django 6.0 and newer

`python manage.py tenure worker` runs the jobs of every `tasks.py`. docs/django.md is the guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.django.app import jobs

if TYPE_CHECKING:
    from tenure.django.backend import TenureBackend, TenureTask

__all__ = ["TenureBackend", "TenureTask", "jobs"]


def __getattr__(name: str) -> object:
    """The task backend, which only Django 6.0 and newer can import."""
    if name not in ("TenureBackend", "TenureTask"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from tenure.django import backend
    except ModuleNotFoundError as error:
        if error.name != "django.tasks":
            raise
        from django import get_version

        raise ImportError(
            f"TASKS needs Django 6.0 or newer, this is {get_version()}: declare tasks with @jobs.task of tenure.django"
        ) from error
    return getattr(backend, name)
