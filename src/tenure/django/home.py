"""What the project's settings say: `TENURE = {…}`, and the store that `DATABASES` gives."""

from __future__ import annotations

import difflib
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

from django import conf
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from tenure.app.backends import extra
from tenure.codecs import Codec, checked
from tenure.config import DJANGO_APP, SETTINGS
from tenure.errors import InvalidOption

#: The settings of Tenure that a project may give. `app` is always `tenure.django:jobs`.
NAMES: Mapping[str, str] = {row.name.upper(): row.name for row in SETTINGS if row.name != "app"}
_OWN = ("CODEC", "DATABASE", "IMPORTS")


@dataclass(frozen=True, slots=True)
class Home:
    """Where the jobs of this project are, and the settings it gives."""

    settings: Mapping[str, object]
    imports: tuple[str, ...]
    alias: str | None  #: the database whose transactions the jobs follow; None: there is none
    name: object  #: that database's name when this was read: a test run changes it
    codec: Codec | None  #: what encrypts the values of jobs

    @property
    def moved(self) -> bool:
        """Has a test run put another database in its place?"""
        return self.alias is not None and _database(self.alias)["NAME"] != self.name

    @property
    def source(self) -> str:
        """The name under which the project declares its schedules: the package of its settings."""
        return str(getattr(conf.settings, "SETTINGS_MODULE", None) or "django").partition(".")[0]


def read() -> Home:
    """The project's settings. Raises InvalidOption that says what is wrong."""
    try:
        given: object = getattr(conf.settings, "TENURE", {})
    except ImproperlyConfigured as error:
        raise InvalidOption(
            "Django has no settings: start with `python manage.py tenure …`, or set DJANGO_SETTINGS_MODULE"
        ) from error
    if not isinstance(given, Mapping):
        raise InvalidOption(f'TENURE: expected a dictionary like {{"CONCURRENCY": 10}}, got {given!r}')
    values = dict(cast("Mapping[str, Any]", given))
    _refuse_unknown(values)
    imports = values.pop("IMPORTS", None) or ()
    if isinstance(imports, str):
        raise InvalidOption(f"TENURE['IMPORTS']: expected a list of module names, got {imports!r}; write [{imports!r}]")
    codec = values.pop("CODEC", None)
    alias = values.pop("DATABASE", None)
    settings: dict[str, object] = {NAMES[name]: value for name, value in values.items() if value is not None}
    settings["app"] = DJANGO_APP
    if "url" not in settings:
        alias = DEFAULT_DB_ALIAS if alias is None else alias
        settings = {**_store(alias), **settings}
    name = None if alias is None else _database(alias)["NAME"]
    return Home(settings, tuple(imports), alias, name, None if codec is None else checked(codec))


def _refuse_unknown(values: Mapping[str, object]) -> None:
    known = (*_OWN, *NAMES)
    for name in values:
        if name == "APP":
            raise InvalidOption("TENURE['APP']: a Django project's app is tenure.django.jobs; leave it out")
        if name not in known:
            near = difflib.get_close_matches(str(name).upper(), known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise InvalidOption(f"TENURE has no setting {name!r}; {advice}")


def _database(alias: str) -> Mapping[str, Any]:
    """The settings of a database as they are now: a test run changes the name in them."""
    databases = cast("Mapping[str, Mapping[str, Any]]", connections.settings)
    if alias not in databases:
        known = ", ".join(map(repr, databases))
        raise InvalidOption(f"TENURE['DATABASE']: DATABASES has no {alias!r}; it has {known}")
    return databases[alias]


def _store(alias: str) -> dict[str, object]:
    """The url and password of the store that this database gives."""
    database = _database(alias)
    vendor: str = connections[alias].vendor
    match vendor:
        case "postgresql":
            return _postgres(database)
        case "sqlite":
            return {"url": f"sqlite:///{_beside(database['NAME'])}"}
        case _:
            raise InvalidOption(
                f'DATABASES[{alias!r}] is {database["ENGINE"]}, which can\'t hold jobs: set TENURE = {{"URL": …}} to '
                "sqlite:////srv/tenure.db, postgresql://… or redis://…"
            )


def _postgres(database: Mapping[str, Any]) -> dict[str, object]:
    with extra("postgres"):
        from psycopg import pq

    # Django's own options, such as `pool` and `isolation_level`, are not libpq's.
    libpq = {each.keyword.decode() for each in pq.Conninfo.get_defaults()}
    options = cast("Mapping[str, object]", database.get("OPTIONS") or {})
    named = {"dbname": database["NAME"], "host": database["HOST"], "port": database["PORT"], "user": database["USER"]}
    given = {**{name: value for name, value in options.items() if name in libpq}, **named}
    if role := options.get("assume_role"):  # Django's connections set it, so the schema must belong to it too
        spelled = str(role).replace("\\", r"\\").replace(" ", r"\ ")
        given["options"] = f"{given.get('options') or ''} -c role={spelled}".strip()
    password = database["PASSWORD"] or given.pop("password", None)
    facts = {name: str(value) for name, value in given.items() if value not in (None, "")}
    found: dict[str, object] = {"url": f"postgresql:///?{urlencode(facts, quote_via=quote, safe='')}"}
    return {**found, "password": password} if password else found


def _beside(name: object) -> Path:
    """A separate file next to Django's.

    SQLite has one writer at a time: in Django's file a long `atomic` block would stop every claim and heartbeat, and
    those would make Django's own writes fail with "database is locked".
    """
    text = str(name)
    if text == ":memory:" or "mode=memory" in text:  # a test run: no other process can see Django's database either
        with _making:
            return Path(_scratch().name) / "tenure.db"
    path = Path(text).absolute()
    return path.with_name(f"{path.stem}.tenure{path.suffix or '.db'}")


_making = threading.Lock()


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tenure-test-")  # removed when the process ends
