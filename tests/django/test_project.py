"""`TENURE` in Django's settings, the store that `DATABASES` gives, and `manage.py tenure …`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from projects import Project, new_project, postgres, settings, sqlite
from psycopg import sql

from servers import shared_postgres


@pytest.mark.everyday
def test_a_worker_of_the_project_runs_the_tasks_of_its_apps(project: Project) -> None:
    project.python(
        "from orders.models import Order; from orders.tasks import pay, apay; "
        "pay.enqueue(Order.objects.create().pk); apay.enqueue(Order.objects.create().pk)"
    )

    project.manage("tenure", "worker", "--until-empty")

    assert project.python("from orders.models import Order; print(Order.objects.filter(paid=True).count())") == "2\n"
    listed = json.loads(project.manage("tenure", "jobs", "list", "--json"))
    assert sorted((job["task"], job["state"]) for job in listed["jobs"]) == [
        ("apay", "completed"),
        ("pay", "completed"),
    ]


def test_the_jobs_of_a_project_on_sqlite_have_a_file_of_their_own(tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path))

    project.manage("tenure", "migrate")

    assert (tmp_path / "db.tenure.sqlite3").exists()
    assert not (tmp_path / "db.sqlite3").exists()


def test_a_worker_is_started_from_any_folder(tmp_path: Path) -> None:
    project = new_project(tmp_path / "srv", sqlite(tmp_path))
    away = tmp_path / "away"
    away.mkdir()

    project.manage("tenure", "worker", "--until-empty", cwd=away)
    project.manage("tenure", "worker", "--until-empty", "--settings", "project.settings", cwd=away)
    project.manage("tenure", "worker", "--until-empty", "--settings=project.settings", cwd=away)


def test_the_settings_of_the_project_reach_every_process(tmp_path: Path) -> None:
    given = {"CONCURRENCY": 3, "LEASE": "90.5s", "QUEUES": ["default=2", "mail"], "HOSTS": ["a.example"]}
    project = new_project(tmp_path, sqlite(tmp_path), tenure=given, more="TENURE['PASSWORD'] = 's3cret'\n")

    shown = project.manage("tenure", "check", "--config", TENURE_CONCURRENCY="7")

    table = {line.split()[0]: line.split()[1] for line in shown.splitlines() if line}
    assert (table["concurrency"], table["lease"]) == ("3", "1m30s")
    assert (table["queues"], table["hosts"]) == ("default=2,mail", "a.example")
    assert "s3cret" not in shown


@pytest.mark.parametrize(
    ("tenure", "said"),
    [
        ({"CONCURENCY": 3}, "TENURE has no setting 'CONCURENCY'; did you mean 'CONCURRENCY'?"),
        ({"LEASE": 30}, "lease: 30 has no unit"),
        ({"DATABASE": "jobs"}, "TENURE['DATABASE']: DATABASES has no 'jobs'; it has 'default'"),
        ({"APP": "shop:jobs"}, "TENURE['APP']: a Django project's app is tenure.django.jobs; leave it out"),
        ({"IMPORTS": "shop.more"}, "write ['shop.more']"),
        ({"IMPORTS": ["shop.more"]}, "imports: there is no module 'shop'"),
        ({"URL": "mysql://db/shop"}, "unknown store 'mysql'"),
        (["URL"], "TENURE: expected a dictionary like {\"CONCURRENCY\": 10}, got ['URL']"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tenure: object, said: str, tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path), tenure=tenure)

    checked = project.manage("check", code=1)

    assert said in checked
    assert "Traceback" not in checked


@pytest.mark.everyday
def test_no_worker_starts_with_a_wrong_setting(tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path), tenure={"LEASE": 30})

    said = project.manage("tenure", "worker", "--until-empty", code=2)

    assert said == 'lease: 30 has no unit; write "30s", "30m" or "30ms"\n'


def test_a_schema_that_is_missing_is_made_by_a_command_of_the_project(database_url: str, tmp_path: Path) -> None:
    project = new_project(tmp_path, postgres(database_url))

    for code, argv in ((2, ["worker", "--until-empty"]), (1, ["jobs", "list"])):
        said = project.manage("tenure", *argv, code=code)
        assert "has no schema tenure of this version" in said
        assert said.endswith("run `manage.py migrate` there first\n")


@pytest.mark.parametrize("command", [["worker"], ["jobs", "list"]])
def test_the_help_names_the_store_of_the_project(command: list[str], tmp_path: Path) -> None:
    said = " ".join(new_project(tmp_path, sqlite(tmp_path)).manage("tenure", *command, "--help").split())

    assert "The store. Default: that of the project's settings." in said.replace("│ │ ", "")
    assert "sqlite:///tenure.db" not in said


def test_a_database_that_can_hold_no_jobs_is_one_sentence(tmp_path: Path) -> None:
    project = new_project(tmp_path, {"ENGINE": "django.db.backends.dummy"})

    said = project.manage("tenure", "jobs", "list", code=2)

    assert "DATABASES['default'] is django.db.backends.dummy, which can't hold jobs: set TENURE" in said


def test_a_bad_task_is_found_by_the_system_check(tmp_path: Path) -> None:
    project = new_project(
        tmp_path, sqlite(tmp_path), tasks="from tenure.django import jobs\n@jobs.task\ndef f(n): ...\n"
    )

    assert "parameter 'n' has no annotation" in project.manage("check", code=1)


def test_jobs_that_can_not_follow_a_transaction_are_a_warning(tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path), tenure={"URL": f"sqlite:///{tmp_path}/jobs.db"})
    assert "tenure.W001" in project.manage("check")

    project.write(
        {
            "project/settings.py": settings(
                sqlite(tmp_path), {"URL": f"sqlite:///{tmp_path}/jobs.db", "DATABASE": "default"}
            )
        }
    )
    assert "tenure.W001" not in project.manage("check")


def test_schedules_belong_to_the_project_and_not_to_tenure(tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path))

    assert project.python("from tenure.django import jobs; print(jobs.program.source)") == "project\n"


def test_call_command_runs_a_command_here(tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path))
    code = "import os; from django.core.management import call_command; call_command('tenure', 'tasks', '--json'); "

    out = project.python(code + "assert 'TENURE_APP' not in os.environ")

    assert {each["name"] for each in json.loads(out)} == {"pay", "apay"}


ENVIRON = """
import os
from tenure.django import jobs

@jobs.task
def environ() -> list[str]:
    return sorted(name for name, value in os.environ.items() if value == "s3cret")
"""
SECRET = "TENURE['PASSWORD'] = 's3cret'\n"
SAYS_ENVIRON = "import os; print({n: os.environ.get(n) for n in ('PYTHONPATH', 'TENURE_URL', 'TENURE_PASSWORD')})"


@pytest.mark.parametrize("before", [[], ["--url", "sqlite:///{folder}/db.tenure.sqlite3"]])
def test_no_program_of_a_handler_inherits_a_secret_of_the_project(before: list[str], tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path), tasks=ENVIRON, more=SECRET)
    job_id = project.python("from orders.tasks import environ; print(environ.enqueue().id)").strip()

    project.manage("tenure", *(each.format(folder=tmp_path) for each in before), "worker", "--until-empty")

    shown = f"from orders.tasks import environ; print(environ.handle('{job_id}').result('0s'))"
    assert project.python(shown) == "[]\n"


def test_a_guarded_command_gets_the_environment_of_its_guard_and_none_of_the_projects_settings(tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path), more=SECRET)

    said = project.manage("tenure", "guard", "g", "--every", "1d", "--", sys.executable, "-c", SAYS_ENVIRON)

    mine = project.environ().get("PYTHONPATH")
    assert said == f"{ {'PYTHONPATH': mine, 'TENURE_URL': None, 'TENURE_PASSWORD': None} }\n"
    (listed,) = json.loads(project.manage("tenure", "schedules", "list", "--json"))
    assert listed["name"] == "g"


def test_a_guarded_command_gets_all_of_its_arguments(tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path))
    mine = ["--settings=x", "--pythonpath", "y", "--settings", "z", "--"]

    said = project.manage(
        *("tenure", "guard", "g", "--settings=project.settings", "--every", "1d", "--pythonpath", str(tmp_path)),
        *("--", sys.executable, "-c", "import sys; print(sys.argv[1:])", *mine),
    )

    assert said == f"{mine}\n"


ONE_TEST = """
from django.test import TestCase
class Shop(TestCase):
    def test_it(self): pass
"""


def test_migrate_also_migrates_a_store_of_its_own_url(database_url: str, tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path), tenure={"URL": database_url})

    project.write({"orders/tests.py": ONE_TEST})
    assert "OK" in project.manage("test")
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT FROM pg_namespace WHERE nspname = 'tenure'").fetchone() is None

    project.manage("migrate", "-v", "0")

    assert json.loads(project.manage("tenure", "jobs", "list", "--json"))["jobs"] == []


def test_jobs_in_another_postgres_database_are_stored_after_the_commit(database_url: str, tmp_path: Path) -> None:
    other = shared_postgres().create_database()
    try:
        project = new_project(tmp_path, postgres(database_url), tenure={"URL": other, "DATABASE": "default"})
        project.manage("migrate", "-v", "0")
        assert "tenure.W001" not in project.manage("check")
        assert project.python(ELSEWHERE) == "[False, True, False]\n"
    finally:
        shared_postgres().drop_database(other)


ELSEWHERE = """
from django.db import transaction
from orders.tasks import jobs, pay

def found(handle):
    return jobs.client().store.get(str(handle.id)) is not None

with transaction.atomic():
    kept = pay.enqueue(1)
    early = found(kept)
try:
    with transaction.atomic():
        lost = pay.enqueue(2)
        raise ValueError
except ValueError:
    pass
print([early, found(kept), found(lost)])
"""


def test_jobs_belong_to_the_role_that_django_assumes(database_url: str, tmp_path: Path) -> None:
    with psycopg.connect(database_url, autocommit=True) as server:
        role = f"site {uuid4().hex[:8]}"
        server.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
        server.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
                sql.Identifier(server.info.dbname), sql.Identifier(role)
            )
        )
        server.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(sql.Identifier(role)))
        try:
            database = {**postgres(database_url), "OPTIONS": {"assume_role": role}}
            project = new_project(tmp_path, database)
            project.manage("migrate", "-v", "0")
            assert project.python(ELSEWHERE) == "[False, True, False]\n"
        finally:
            server.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


NAMES = """
from types import SimpleNamespace
from tenure.django.asgi import _may_look, _name

for name in (4711, "a" * 250 + "@b.c", "", "a\\nb"):
    shown = _name(SimpleNamespace(get_username=lambda: name, pk=7))
    print(len(shown), shown[:8])
for facts in (
    {"is_staff": True}, {"is_staff": False, "is_superuser": True}, {"is_superuser": True}, {"is_superuser": False}, {}
):
    print(_may_look(SimpleNamespace(is_active=True, **facts)), _may_look(SimpleNamespace(is_active=False, **facts)))
"""


def test_the_dashboard_takes_the_names_of_any_user_model(tmp_path: Path) -> None:
    project = new_project(tmp_path, sqlite(tmp_path), tenure={"IMPORTS": None})
    names, rights = ["4 4711", "200 aaaaaaaa", "6 user 7", "3 a?b"], ["True", "False", "True", "False", "False"]
    assert project.python(NAMES).splitlines() == [*names, *(f"{may} False" for may in rights)]
