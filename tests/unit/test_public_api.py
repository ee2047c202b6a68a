from __future__ import annotations

import os
import subprocess
import sys

import tenure

HEAVY = ("apsw", "asyncio", "cyclopts", "dotenv", "pydantic", "rich", "sqlite3", "tenure.client", "tenure.stores")


def test_all_names_what_the_package_offers_and_nothing_else() -> None:
    public = {
        name
        for name, value in vars(tenure).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("tenure.")
    }

    assert public == set(tenure.__all__)
    assert list(tenure.__all__) == sorted(tenure.__all__)


def test_every_public_name_says_what_it_is() -> None:
    assert [name for name in tenure.__all__ if not (getattr(tenure, name).__doc__ or "").strip()] == []


def test_importing_the_package_opens_and_drags_in_nothing() -> None:
    script = f"import sys, tenure; tenure.Tenure(); print([name for name in {HEAVY} if name in sys.modules])"

    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)

    assert found.stdout.strip() == "[]"
