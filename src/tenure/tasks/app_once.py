"""The part of an app that keeps the first result of a key: `jobs.once(…)`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tenure.core.durations import Duration, seconds
from tenure.errors import InvalidOption
from tenure.tasks.loops import refuse_on_loop
from tenure.tasks.once import decode_result
from tenure.tasks.task import returned
from tenure.tasks.texts import valid_key

if TYPE_CHECKING:
    from tenure.tasks.client import Client

T = TypeVar("T")


class WithOnce:
    """The part of an app that keeps the first result of a key."""

    if TYPE_CHECKING:  # the app's own

        def client(self) -> Client: ...

        async def aclient(self) -> Client: ...

    def once(self, key: str, fn: Callable[[], T], *, ttl: Duration | None = None, wait: Duration | None = None) -> T:
        """The result of the first `fn` that was called under this key, in any process; it is called once.

        Example: `jobs.once(f"payout:{invoice}", lambda: bank.pay(invoice), ttl="30d")`. The result is stored as JSON
        for `ttl` (None: forever) and decoded by the return annotation of `fn`. While another process runs `fn`, this
        call waits, for at most `wait`, and then raises TimeoutError. If `fn` raises, the key is free again. A process
        that dies after `fn` took effect and before its result is stored lets `fn` run again: pass the key to the other
        system too, or commit the effect and the outcome in one transaction, with `job.finish(tx=…)`.
        """
        refuse_on_loop("jobs.once(…)", "await jobs.aonce(…)")
        key, life, patience = _once_options(key, ttl, wait)
        value: T = decode_result(key, self.client().once(key, fn, life, patience), returned(fn))
        return value

    @overload
    async def aonce(
        self, key: str, fn: Callable[[], Awaitable[T]], *, ttl: Duration | None = None, wait: Duration | None = None
    ) -> T: ...
    @overload
    async def aonce(
        self, key: str, fn: Callable[[], T], *, ttl: Duration | None = None, wait: Duration | None = None
    ) -> T: ...
    async def aonce(
        self, key: str, fn: Callable[[], Any], *, ttl: Duration | None = None, wait: Duration | None = None
    ) -> Any:
        """The result of the first call of `fn`, plain or async, under this key. A plain one must not block the loop.

        Example: `await jobs.aonce("k", pay, ttl="30d")`
        """
        key, life, patience = _once_options(key, ttl, wait)
        found = await (await self.aclient()).aonce(key, fn, life, patience)
        return decode_result(key, found, returned(fn))


def _once_options(key: str, ttl: Duration | None, wait: Duration | None) -> tuple[str, float | None, float | None]:
    life = None if ttl is None else seconds(ttl, "ttl")
    if life == 0:
        raise InvalidOption(f"ttl: expected how long the result is kept, like 30d, got {ttl!r}; None keeps it forever")
    return valid_key(key, "once key"), life, None if wait is None else seconds(wait, "wait")
