"""A real Prometheus, where it is installed: with its own data folder, and an address that it alone has."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers import hold_port

PROGRAM = shutil.which("prometheus")
RULES = Path(__file__).parents[1] / "ops" / "alerts.yml"
installed = pytest.mark.skipif(
    PROGRAM is None, reason="Prometheus is not installed (on Debian: apt install prometheus)"
)
Ask = Callable[..., Any]


@contextmanager
def prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Ask]:
    """Runs with this configuration and the data in `folder / "data"`. `ask("query", query=…)` asks its API.

    While it starts, answers are empty: {"result": []}.
    """
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
    held = hold_port()
    address = f"127.0.0.1:{held.getsockname()[1]}"
    held.close()
    command = [str(PROGRAM), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)

    def ask(what: str, **words: str) -> Any:
        try:
            query = urllib.parse.urlencode(words)
            with urllib.request.urlopen(f"http://{address}/api/v1/{what}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            assert error.code == 503, error.read().decode()
        except urllib.error.URLError:
            assert process.poll() is None, (folder / "prometheus.log").read_text()[-2000:]
        return {"result": []}

    try:
        yield ask
    finally:
        process.kill()
        process.wait()
