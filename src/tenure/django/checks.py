"""System checks: `manage.py check` says what is wrong with `TENURE`, and with the tasks of the installed apps."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004

from tenure.app.backends import open_store
from tenure.errors import TenureError


def check(**kwargs: Any) -> list[CheckMessage]:
    """E001: the settings; E002: a task; W001: a store whose jobs can't join the project's transactions."""
    from tenure.django import jobs

    try:
        open_store(jobs.settings)
    except TenureError as error:
        return [Error(str(error), id="tenure.E001")]
    try:
        jobs.tasks.resolve()
        jobs.program.schedules()
    except TenureError as error:
        return [Error(str(error), id="tenure.E002")]
    if jobs.home.alias is None:
        return [
            Warning(
                "TENURE has a URL and no DATABASE: what is enqueued inside transaction.atomic() is stored at once, and "
                "stays if the block is rolled back",
                hint='Add "DATABASE": "default" (or another alias) to TENURE: jobs are then stored with its commit.',
                id="tenure.W001",
            )
        ]
    return []
