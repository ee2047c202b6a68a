"""The Django app: system checks, `migrate`, and what a test run needs when it changes settings or the database."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks, mail
from django.core.management.base import CommandError
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate

from tenure.app.backends import open_store
from tenure.errors import TenureError


class TenureConfig(AppConfig):
    name = "tenure.django"
    label = "tenure"
    verbose_name = "Tenure"

    def ready(self) -> None:
        from tenure.django.checks import check

        checks.register(check, "tenure")
        setting_changed.connect(_changed, dispatch_uid="tenure")
        connection_created.connect(_connected, dispatch_uid="tenure")
        post_migrate.connect(_migrated, sender=self, dispatch_uid="tenure")


def _changed(*, setting: str, **_: Any) -> None:
    """A test has overridden a setting."""
    from tenure.django import jobs

    if setting == "TENURE":
        jobs.forget()


def _connected(*, connection: Any, **_: Any) -> None:
    """Django connects without a database only to create or drop that of a test: our connections would prevent it."""
    from tenure.django import jobs

    if connection.alias == NO_DB_ALIAS:
        jobs.forget()


def _migrated(*, using: str, plan: object = None, **_: Any) -> None:
    """`manage.py migrate` also brings the schema of the jobs up to date, in test databases too."""
    from tenure.django import jobs

    try:
        alias = jobs.home.alias
        if alias is None and hasattr(
            mail, "outbox"
        ):  # of a test run, which has no database for a store with its own URL
            return
        if plan is not None and using == (alias or DEFAULT_DB_ALIAS):  # without a plan it is `flush`
            open_store(jobs.settings).migrate()
    except TenureError as error:
        raise CommandError(str(error)) from error
