"""Where settings come from, which win, and what is refused."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tenure.config import SETTINGS, Settings, _warn_once, load, redact
from tenure.errors import InvalidOption


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    """What is logged once per process may have been logged in an earlier test."""
    _warn_once.cache_clear()


def settle(folder: Path, environ: Mapping[str, str] | None = None, **layers: Mapping[str, object]) -> Settings:
    return load(layers.get("flags"), layers.get("code"), environ=environ or {}, folder=folder)


def test_every_default_can_be_read_and_is_what_the_table_says(folder: Path) -> None:
    settings = settle(folder)

    assert (settings.url, settings.concurrency, settings.workers) == (f"sqlite:///{folder}/tenure.db", 5, 1)
    assert (settings.grace, settings.lease, settings.poll_interval) == (25.0, 30.0, 5.0)
    assert (settings.retry_max, settings.retry_base, settings.retry_cap) == (10, 1.0, 30.0)
    assert (settings.keep, settings.keep_dead, settings.queues) == (7 * 86_400.0, None, {})
    assert (settings.max_payload, settings.max_result) == (256 * 1024, 256 * 1024)
    for row, value, source in settings.shown():
        assert source == "default"
        assert row.default is None or row.name == "url" or value == row.default


def test_a_flag_beats_the_code_beats_the_environment_beats_dotenv_beats_the_default(folder: Path) -> None:
    (folder / ".env").write_text("TENURE_GRACE=4s\nTENURE_LEASE=40s\nTENURE_KEEP=4h\nTENURE_WORKERS=4\n")
    environ = {"TENURE_GRACE": "3s", "TENURE_LEASE": "30s", "TENURE_KEEP": "3h"}

    settings = settle(folder, environ, code={"grace": "2s", "lease": "20s"}, flags={"grace": "1s"})

    assert (settings.grace, settings.lease, settings.keep, settings.workers) == (1.0, 20.0, 10_800.0, 4)
    sources = {name: settings.sources[name] for name in ("grace", "lease", "keep", "workers", "url")}
    assert sources == {
        "grace": "--grace",
        "lease": "code",
        "keep": "TENURE_KEEP",
        "workers": ".env",
        "url": "default",
    }


def test_none_and_an_empty_variable_mean_not_given(folder: Path) -> None:
    settings = settle(folder, {"TENURE_GRACE": "", "TENURE_KEEP_DEAD": ""}, flags={"grace": None}, code={"url": None})

    assert (settings.grace, settings.keep_dead, settings.url) == (25.0, None, f"sqlite:///{folder}/tenure.db")


def test_dotenv_never_reaches_the_environment_and_only_our_names_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("TENURE_GRACE=4s\nOTHER=1\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TENURE_GRACE", raising=False)

    before = dict(os.environ)
    settings = load()

    assert settings.grace == 4.0
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("lease", "0.5s", "1s to 1h"),
        ("lease", "2h", "1s to 1h"),
        ("lease", "30", 'write "30s"'),
        ("keep", "59m", "at least 1h"),
        ("keep_dead", "1m", "at least 1h"),
        ("concurrency", "0", "from 1 to 10000"),
        ("concurrency", "five", "a whole number"),
        ("workers", "-1", "from 1 to 1000"),
        ("retry_max", True, "a whole number"),
        ("max_payload", "1GB", "1KiB to 64MiB"),
        ("max_result", "12", "1KiB to 64MiB"),
        ("queues", "a=0", "from 1 to 10000"),
        ("queues", "a,a", "named twice"),
        ("queues", "1a", "a letter or _ first"),
        ("queues", [], "analysis=2,default"),
        ("queues", 5, "analysis=2,default"),
        ("namespace", "a b", "letters, digits"),
        ("tokens", "ada:admin", "NAME:ROLE:SECRET"),
        ("tokens", "ada:root:0123456789abcdef", "read, operate or admin"),
        ("tokens", "ada:read-only:0123456789abcdef", "read, operate or admin"),
        ("tokens", "ada:admin:0123456789abcde", "16 characters"),
        ("tokens", "a b:admin:0123456789abcdef", "a letter or _ first"),
        ("tokens", "a:read:0123456789abcdef,a:read:0123456789abcdeg", "number 2 repeats the name or the secret"),
        ("tokens", "a:read:0123456789abcdef,b:read:0123456789abcdef", "number 2 repeats the name or the secret"),
        ("hosts", "https://jobs.example.com", "without https://"),
        ("hosts", "jobs.example.com:80", "without a port"),
        ("redact", "pass word", "password,api_key"),
        ("log_format", "xml", "text, json"),
        ("log_level", "loud", "debug, info"),
        ("url", "tenure.db", "sqlite:///tenure.db"),
        ("app", 5, "expected text"),
        ("runtime_dir", "", "a folder"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_was_expected(
    folder: Path, name: str, value: object, word: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        settle(folder, code={name: value})

    assert str(refused.value).startswith(name)
    assert word in str(refused.value)


def test_a_bad_value_names_where_it_stands(folder: Path) -> None:
    (folder / ".env").write_text("TENURE_LEASE=soon\n")

    with pytest.raises(InvalidOption, match=r"^TENURE_LEASE in \.env: "):
        settle(folder)
    with pytest.raises(InvalidOption, match=r"^TENURE_LEASE: "):
        settle(folder, {"TENURE_LEASE": "later"})
    with pytest.raises(InvalidOption, match=r"^--lease: "):
        settle(folder, flags={"lease": "never"})


def test_a_dotenv_that_is_no_text_is_refused_with_a_sentence(folder: Path) -> None:
    (folder / ".env").write_bytes(b"TENURE_GRACE=\xff\xfe\n")

    with pytest.raises(InvalidOption, match="readable UTF-8"):
        settle(folder)


def test_sizes_are_bytes_and_read_as_people_write_them(folder: Path) -> None:
    for text, size in (("256KiB", 262_144), ("1MiB", 1 << 20), ("2048", 2048), (4096, 4096)):
        assert settle(folder, code={"max_payload": text}).max_payload == size


def test_queues_keep_their_order_and_their_caps(folder: Path) -> None:
    for given in ("analysis=2, default", ["analysis=2", "default"]):
        settings = settle(folder, code={"queues": given})
        assert list(settings.queues.items()) == [("analysis", 2), ("default", None)]


def test_the_runtime_folder_is_the_users_own(folder: Path) -> None:
    assert settle(folder, {"XDG_RUNTIME_DIR": "/run/user/7"}).runtime_dir == Path("/run/user/7/tenure")
    assert settle(folder).runtime_dir.name.startswith("tenure-")
    assert settle(folder, {"TENURE_RUNTIME_DIR": "/srv/bells"}).runtime_dir == Path("/srv/bells")


def test_no_password_is_ever_shown(folder: Path) -> None:
    settings = settle(folder, {"TENURE_PASSWORD": "hunter2"}, code={"url": "postgresql://shop:hunter2@db/shop"})

    assert settings.password == "hunter2"
    assert "hunter2" in settings.url
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.shown())


def test_tokens_say_who_may_what_and_are_shown_nowhere(folder: Path) -> None:
    text = "ada:admin:ada-hunter2-012345, bob:read:bob:hunter2:012345,eve:read+payloads:eve-hunter2-012345"
    settings = settle(folder, {"TENURE_TOKENS": text + ",tim:operate-payloads:tim-hunter2-012345"})

    seen = [(token.name, token.role, token.payloads) for token in settings.tokens]
    assert seen == [("ada", "admin", True), ("bob", "read", False), ("eve", "read", True), ("tim", "operate", False)]
    assert settings.tokens[1].secret == "bob:hunter2:012345"
    assert "hunter2" not in repr(settings) + repr(settings.tokens) + str(settings.shown())
    for wrong in ("ada:admin:hunter2", "hunter2-0123456789", "ada:hunter2-0123456789:x"):
        with pytest.raises(InvalidOption) as refused:
            settle(folder, {"TENURE_TOKENS": wrong})
        assert "hunter2" not in str(refused.value)


def test_hosts_and_redacted_names_are_lists(folder: Path) -> None:
    settings = settle(folder, {"TENURE_HOSTS": "Jobs.Example.com, [::1],10.0.0.7", "TENURE_REDACT": "pin, iban,pin"})

    assert settings.hosts == ("jobs.example.com", "::1", "10.0.0.7")
    assert settings.redact == ("pin", "iban")
    assert settle(folder, {"TENURE_REDACT": "none"}).redact == ()
    shown = {row.name: value for row, value, _ in settings.shown()}
    assert (shown["hosts"], shown["redact"], shown["tokens"]) == ("jobs.example.com,::1,10.0.0.7", "pin,iban", "unset")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("redis://:p@h:6379/0", "redis://:***@h:6379/0"),
        ("redis://:p@ss/w:rd@h:6379/0", "redis://:***@h:6379/0"),
        ("postgresql://h/d?user=u&password=p", "postgresql://h/d?user=u&password=***"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("sqlite:////srv/a:b.db", "sqlite:////srv/a:b.db"),
        ("can't reach redis://:p@h now", "can't reach redis://:***@h now"),
    ],
)
def test_redacting_hides_the_password_and_leaves_the_rest(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    ("url", "relative"),
    [
        ("sqlite:///tenure.db", True),
        ("sqlite:///./tenure.db", True),
        ("sqlite:////srv/tenure.db", False),
        ("sqlite:////srv//./tenure.db", False),
        ("sqlite:///:memory:", False),
    ],
)
def test_a_path_is_relative_only_if_it_has_no_slash_in_front(folder: Path, url: str, relative: bool) -> None:
    assert settle(folder, {"TENURE_URL": url}).relative_url is relative


def test_a_misspelt_variable_is_warned_of_once_with_the_nearest_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        settle(folder, {"TENURE_CONCURENCY": "3"})

    (record,) = [record for record in caplog.records if "TENURE_CONCURENCY" in record.getMessage()]
    assert "did you mean TENURE_CONCURRENCY?" in record.getMessage()
    assert record.levelno == logging.WARNING


def test_variables_that_kubernetes_or_the_tests_set_are_nobodys_mistake(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = (
        "TENURE_PORT",
        "TENURE_PORT_3000_TCP_ADDR",
        "TENURE_SERVICE_HOST",
        "TENURE_WEB_SERVICE_PORT_HTTP",
        "TENURE_TEST_POSTGRES",
    )

    settle(folder, dict.fromkeys(names, "tcp://10.0.0.1:3000"))

    assert [record for record in caplog.records if record.name == "tenure.config"] == []


def test_a_url_in_the_code_that_overrules_the_environment_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"TENURE_URL": "postgresql://u:hunter2@h/only-here"}

    settings = settle(folder, environ, code={"url": "sqlite:///jobs.db"})
    settle(folder, environ, code={"url": environ["TENURE_URL"]})
    settle(folder, environ, code={"url": "sqlite:///jobs.db"}, flags={"url": "sqlite:///flag.db"})

    assert settings.url == f"sqlite:///{folder}/jobs.db"
    (record,) = [record for record in caplog.records if "only-here" in record.getMessage()]
    assert "the code wins" in record.getMessage()
    assert "hunter2" not in record.getMessage()


def test_no_two_settings_share_a_name() -> None:
    assert len({row.env for row in SETTINGS}) == len(SETTINGS)
