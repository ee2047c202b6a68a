"""`python -m chaos.client SEED RATE LEASE`: enqueues, cancels, replays, deletes and reads, until it is told to stop.

It writes down each request before it sends it, and each answer. It is told to stop by SIGTERM.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from tenure.app.backends import connect
from tenure.errors import StoreError, UnknownLimit
from tenure.ports import Landed

from . import workload
from .history import pen

RECENT = 200
ENDED = ("completed", "dead", "cancelled")
LIMITED = "TENURE_TEST_LIMITED"  #: if set, all code of this run knows limits


class Stop(Exception):
    pass


class Client:
    def __init__(self, seed: int, rate: float, lease: float) -> None:
        self._draw = random.Random(seed)
        self._rate = rate
        self._lease = lease
        self._pen = pen()
        self._count = 0
        self._mine: list[tuple[str, str]] = []  # key, id
        self._going = True

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        while True:
            with suppress(StoreError):
                self._store = connect(workload.jobs.settings, workload.jobs.codec)
                break
            time.sleep(0.2)
        self._transactions = self._store.capabilities.transactions
        ways: list[tuple[float, Callable[[], None]]] = [
            (50, self._enqueue_one),
            (8, self._enqueue_many),
            (8, self._enqueue_later),
            (6, self._enqueue_unique),
            (8 if self._transactions else 0, self._enqueue_within),
            (10 if LIMITED in os.environ else 0, self._enqueue_limited),
            (1 if LIMITED in os.environ else 0, self._pause_key),
            (4, self._cancel),
            (2, self._replay),
            (2, self._delete),
            (20, self._read),
        ]
        weights, calls = zip(*ways, strict=True)
        while self._going:
            self._draw.choices(calls, weights)[0]()
            time.sleep(self._draw.expovariate(self._rate))

    def _stop(self, _: int, __: FrameType | None) -> None:
        self._going = False

    # ── enqueues ──

    def _key(self) -> str:
        self._count += 1
        return f"{self._pen.actor}-{self._count}"

    def _bind(self, **options: Any) -> tuple[str, Any]:
        """A new job, and its key: what we are about to ask for is written down."""
        key = self._key()
        kind, script, must = workload.draw_script(self._draw, transactions=self._transactions, lease=self._lease)
        if "unique" in options:
            kind, script, must = "act", [["sleep", 0.3], ["effect"]], "completed"
        tx = options.pop("within", "")
        task = workload.TASKS[kind].using(**options)
        job = task.bind(key, [list(step) for step in script])
        about = {"tx": tx} if tx else {}
        due = float(options.get("delay", "0s").removesuffix("s"))
        self._pen.note(
            "enqueue", "invoke", key=key, must=must, script=script, due=due, unique=options.get("unique", ""), **about
        )
        return key, job

    def _told(self, key: str, handle: Any) -> None:
        self._pen.note("enqueue", "ok", key=key, id=str(handle.id), created=handle.created)
        if handle.created:
            self._mine = [*self._mine[-RECENT:], (key, str(handle.id))]

    def _unknown(self, error: Exception, *keys: str) -> None:
        for key in keys:
            self._pen.note("enqueue", "info", key=key, error=repr(error)[:300])

    def _enqueue(self, **options: Any) -> None:
        self._send(*self._bind(**options))

    def _send(self, key: str, job: Any) -> None:
        try:
            handle = job.enqueue()
        except StoreError as error:
            self._unknown(error, key)
        else:
            self._told(key, handle)

    def _enqueue_one(self) -> None:
        self._enqueue()

    def _enqueue_later(self) -> None:
        self._enqueue(delay=f"{self._draw.uniform(0.1, self._lease):.2f}s")

    def _enqueue_unique(self) -> None:
        """All clients use the same few keys."""
        self._enqueue(unique=f"only-{self._draw.randrange(3)}")

    def _enqueue_limited(self) -> None:
        key = self._key()
        drawn = workload.paced if self._draw.random() < 0.1 else workload.limited
        job = drawn(self._draw, key)
        self._pen.note("enqueue", "invoke", key=key, must="completed", script=[], due=0.0, unique="")
        self._send(key, job)

    def _enqueue_many(self) -> None:
        bound = [self._bind() for _ in range(5)]
        try:
            handles = workload.jobs.enqueue_many([job for _, job in bound])
        except StoreError as error:
            self._unknown(error, *(key for key, _ in bound))
        else:
            for (key, _), handle in zip(bound, handles, strict=True):
                self._told(key, handle)

    def _enqueue_within(self) -> None:
        """A job and a row, which are there together, or not at all."""
        commit = self._draw.random() < 0.7
        key, job = self._bind(within="commit" if commit else "rollback")
        reached_the_end = False
        try:
            with workload.jobs.transaction() as tx:
                tx.execute(f"INSERT INTO {workload.table('rows')} VALUES ('{key}')")
                (handle,) = workload.jobs.enqueue_many([job], tx=tx)
                reached_the_end = True
                if not commit:
                    raise Stop
        except Stop:
            self._pen.note("enqueue", "fail", key=key)
        except Exception as error:
            # Before the block reaches its end, no commit is requested.
            self._pen.note("enqueue", "info" if reached_the_end else "fail", key=key, error=repr(error)[:300])
        else:
            self._told(key, handle)

    # ── what operators do ──

    def _pause_key(self) -> None:
        """Not written down: the jobs of the key go on by themselves."""
        with suppress(StoreError, UnknownLimit):
            workload.jobs.limits.pause(f"one:{self._draw.randrange(workload.SHOPS)}", "500ms")

    def _one(self) -> tuple[str, str] | None:
        return self._draw.choice(self._mine) if self._mine else None

    def _ask(self, op: str, call: Callable[[str], dict[str, Any]], one: tuple[str, str] | None = None) -> None:
        one = one or self._one()
        if one is None:
            return
        key, job = one
        self._pen.note(op, "invoke", key=key, job=job)
        try:
            told = call(job)
        except StoreError as error:
            self._pen.note(op, "info", key=key, job=job, error=repr(error)[:300])
        else:
            self._pen.note(op, "ok", key=key, job=job, **told)

    def _cancel(self) -> None:
        self._ask("cancel", lambda job: {"state": self._store.cancel([job], "it is not needed any more")[job]})

    def _replay(self) -> None:
        self._ask("replay", lambda job: {"landed": isinstance(self._store.replay([job])[job], Landed)})

    def _delete(self) -> None:
        """An ended job: a live one would never reach its end."""
        one = self._one()
        if one is None:
            return
        with suppress(StoreError):
            view = self._store.get(one[1])
            if view is not None and view.state in ENDED:
                self._ask("delete", lambda job: {"landed": isinstance(self._store.delete([job])[job], Landed)}, one)

    def _read(self) -> None:
        one = self._one()
        if one is None:
            return
        key, job = one
        self._pen.note("read", "invoke", key=key, job=job)
        with suppress(StoreError):
            view = self._store.get(job)
            state, attempt = (None, 0) if view is None else (view.state, view.attempt)
            self._pen.note("read", key=key, job=job, state=state, attempt=attempt)


def main(seed: str, rate: str, lease: str) -> int:
    Client(int(seed), float(rate), float(lease)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
