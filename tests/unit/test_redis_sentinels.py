"""Sentinels that are gone, or that name a wrong primary: what it costs a store, and how it finds the right one."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from redis import exceptions

from conformance.factories import put
from servers import Valkey, free_port
from tenure.core.lifecycle import State
from tenure.errors import StoreAway
from tenure.stores.redis import RedisStore
from tenure.stores.redis import sentinels as module
from waiting import until

NAMES = re.compile(rb"^\*3\r\n\$8\r\nSENTINEL\r\n", re.MULTILINE)


class Scripted:
    """A Sentinel that names this port as the primary; with none it accepts connections and never answers."""

    def __init__(self, names: int | None) -> None:
        self.names = names
        self.connected = 0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.door.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Scripted:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.door.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.door.close()

    def _serve(self) -> None:
        with ExitStack() as open_ones:
            while True:
                try:
                    line, _ = self.door.accept()
                except OSError:
                    return
                self.connected += 1
                open_ones.enter_context(line)
                if self.names is not None:
                    with suppress(OSError):
                        self._answer(line)

    def _answer(self, line: socket.socket) -> None:
        port = str(self.names)
        while asked := line.recv(65536):
            if NAMES.search(asked):
                line.sendall(f"*2\r\n$9\r\n127.0.0.1\r\n${len(port)}\r\n{port}\r\n".encode())
            else:
                line.sendall(b"+OK\r\n" * len(re.findall(rb"^\*", asked, re.MULTILINE)))


@pytest.fixture(scope="module")
def primary() -> Iterator[Valkey]:
    with Valkey() as primary:
        yield primary


@contextmanager
def opened(primary: Valkey, *sentinels: Scripted) -> Generator[RedisStore]:
    hosts = ",".join(each.address for each in sentinels)
    with primary.namespace() as namespace:
        store = RedisStore(f"redis+sentinel://:{primary.password}@{hosts}/shop/0", namespace=namespace)
        try:
            store.open()
            yield store
        finally:
            store.close()


def look_again(store: RedisStore) -> None:
    """Make a call that asks the Sentinels where the primary is."""
    until(store.server.sentinels_due, "the Sentinels to be due")
    put(store)


def test_a_sentinel_that_does_not_answer_is_waited_for_once(primary: Valkey) -> None:
    with Scripted(None) as silent, Scripted(primary.port) as right, opened(primary, silent, right) as store:
        look_again(store)
        asked = right.connected
        look_again(store)

        assert (silent.connected, right.connected) == (1, asked + 1)
        assert store.counts()[State.QUEUED] == 2


@pytest.mark.parametrize("what", ["nobody", "a replica"])
def test_a_sentinel_that_names_a_wrong_primary_is_passed_over_and_asked_last(what: str, primary: Valkey) -> None:
    with ExitStack() as stack:
        named = stack.enter_context(Valkey(replica_of=primary)).port if what == "a replica" else free_port()
        stale, right = (stack.enter_context(Scripted(port)) for port in (named, primary.port))
        store = stack.enter_context(opened(primary, stale, right))
        put(store)
        asked = stale.connected, right.connected
        look_again(store)

        assert (stale.connected, right.connected) == (asked[0], asked[1] + 1)
        with store.server._lent():  # another connection
            assert store.counts()[State.QUEUED] == 2
        right.names = named
        stale.names = primary.port
        look_again(store)
        assert store.counts()[State.QUEUED] == 3


def test_if_all_sentinels_name_a_replica_it_is_told(primary: Valkey) -> None:
    with Valkey(replica_of=primary) as replica, Scripted(replica.port) as one, Scripted(replica.port) as other:
        with pytest.raises(StoreAway, match="is a read-only replica"), opened(primary, one, other):
            pass


def test_sentinels_are_due_a_second_after_they_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    due_meanwhile: list[bool] = []
    monkeypatch.setattr(module, "monotonic", lambda: now[0])

    def ask(address: tuple[str, int]) -> tuple[str, str]:
        due_meanwhile.append(asked.due())
        now[0] += 5.0
        if address[1] == 1:
            raise exceptions.ConnectionError
        return "primary", "6379"

    asked = module.Sentinels([("s", 1), ("s", 2)], "shop", ask)
    assert asked.due()
    assert asked.primary() == ("primary", 6379)

    assert due_meanwhile == [False, False]  # the other threads go on
    assert not asked.due()
    now[0] += module.EVERY_SECONDS + 0.1
    assert asked.due()
