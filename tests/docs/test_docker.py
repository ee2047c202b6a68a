"""examples/docker, as far as a machine without Docker can check it: what is copied exists, what is run runs."""

from __future__ import annotations

import json
import re
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tenure.cli.main import main
from tenure.config import load
from tenure.core.durations import seconds

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "examples" / "docker"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "compose.yaml").read_text())["services"]
DOCKERFILE = (HERE / "Dockerfile").read_text()
COMMAND: list[str] = json.loads(re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)[0])
COMMANDS = [COMMAND, *(each["command"] for each in SERVICES.values() if "command" in each)]


@pytest.fixture
def shop() -> ModuleType:
    spec = util.spec_from_file_location("shop", HERE / "shop.py")
    assert spec and spec.loader
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("command", [each for each in COMMANDS if each[0] == "tenure"], ids=" ".join)
def test_each_command_exists_with_its_options(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    verb, options = command[1], [word for word in command if word.startswith("--")]

    assert main([verb, "--help"]) == 0
    assert set(options) <= set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))


def test_all_that_is_copied_into_the_image_is_there() -> None:
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)]

    assert copied
    assert [path for paths in copied for path in paths if not (ROOT / path).exists()] == []


def test_no_container_runs_as_root_and_every_extra_exists() -> None:
    assert DOCKERFILE.rindex("USER app") < DOCKERFILE.rindex("CMD")
    extras = re.findall(r"/tmp/tenure\[([a-z,]+)\]", DOCKERFILE)[0].split(",")
    assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)


def test_a_worker_has_longer_to_stop_than_its_grace(tmp_path: Path) -> None:
    grace = load({}, environ={}, folder=tmp_path).grace

    assert seconds(SERVICES["worker"]["stop_grace_period"], "stop_grace_period") >= grace + 15


def test_the_settings_are_settings_and_are_taken(tmp_path: Path) -> None:
    for name in ("web", "worker", "dashboard", "migrate"):
        environment = {
            key: re.sub(r"\$\{.*?:-(.*?)\}", r"\1", text) for key, text in SERVICES[name]["environment"].items()
        }
        assert load({}, environ=environment, folder=tmp_path).url == "postgresql://tenure@postgres/tenure"


def test_an_order_is_charged_once_and_its_state_can_be_asked_for(shop: ModuleType) -> None:
    with shop.jobs.testing() as queue:
        job = shop.buy(7)["job"]
        assert shop.buy(7)["job"] == job
        assert shop.look(job) == {"state": "queued"}
        queue.drain()
        assert shop.look(job) == {"state": "completed"}


def test_the_kubernetes_deployment_of_the_docs_fits_together(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    (deployment,) = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(apiVersion.*?)```", page, re.DOTALL)]
    pod = deployment["spec"]["template"]["spec"]
    (worker,) = pod["containers"]

    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    environ = {each["name"]: each.get("value", "secret") for each in worker["env"]}
    settings = load({}, environ=environ, folder=tmp_path)
    assert pod["terminationGracePeriodSeconds"] >= settings.grace + 15
    assert settings.app == "shop.jobs:jobs"
    assert settings.password == "secret"
    assert worker["command"] == ["tenure", "worker", "--listen", f"0.0.0.0:{worker['ports'][0]['containerPort']}"]
    probes = {name: each["httpGet"] for name, each in worker.items() if name.endswith("Probe")}
    assert probes == {name: {"path": "/healthz", "port": "metrics"} for name in ("startupProbe", "readinessProbe")}
