"""Tenure in a Django project: its settings, its tasks, its transactions and its tests.

# settings.py
INSTALLED_APPS = [..., "tenure.django"]
TENURE = {"CONCURRENCY": 10}  # the jobs are in the database "default"

`python manage.py tenure worker` runs the jobs of every `tasks.py`. docs/django.md is the guide.
"""

from __future__ import annotations

from tenure.django.app import DjangoApp

__all__ = ["jobs"]

jobs = DjangoApp()
"""The project's app. Example, in a `tasks.py`: `@jobs.task` above `def send_receipt(order: int) -> None: ...`"""
