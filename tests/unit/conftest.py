"""The command line in this process, in a folder with an app and a SQLite store; and a store whose line can be cut."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proxy import Proxy
from servers import shared_postgres
from tenure.cli.main import main
from tenure.stores.postgres import PostgresStore


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The current folder, with the APP of the test's module as shop.py."""
    for name in [name for name in os.environ if name.startswith("TENURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(request.module.APP)
    monkeypatch.setenv("TENURE_APP", "shop")
    monkeypatch.setenv("TENURE_NOTIFIER", "poll")
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """One command in this process: its exit code, standard output and standard error."""

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(argv)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    url = urlsplit(shared_postgres().url())
    with Proxy(url.hostname or "", url.port or 0) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy) -> Iterator[PostgresStore]:
    """A store whose line `proxy` can cut."""
    databases = shared_postgres()
    url = databases.create_database()
    store = PostgresStore(url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/"))
    store.migrate()
    store.open()
    yield store
    proxy.heal()
    store.close()
    databases.drop_database(url)
