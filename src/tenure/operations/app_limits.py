"""The limits of an app: `jobs.limit(…)` declares one, `jobs.limits` reads and changes what holds in its store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.core.durations import Duration
from tenure.tasks.handle import AppPort
from tenure.tasks.limits import Limit, declared_limit, name_of
from tenure.tasks.loops import aside, refuse_on_loop

if TYPE_CHECKING:
    from tenure.operations.limits import KeyStatus, Limits, LimitStatus
    from tenure.schedules.timetable import Declared
    from tenure.tasks.limits import DeclaredLimits
    from tenure.worker.program import Program

T = TypeVar("T")


class WithLimits:
    """The part of an app that declares and changes limits."""

    _limits: DeclaredLimits

    def limit(
        self,
        template: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
    ) -> Limit:
        """At most `concurrency` jobs of a key run at a time, and begin within `rate`, in all processes together.

        Example: `per_shop = jobs.limit("shop:{shop}", concurrency=2)`, then `@jobs.task(limit=per_shop)` above a task
        with an argument `shop`: each shop has a key of its own. `rate="100/1m"`: in any minute at most 100 begin, at
        most `burst` of them at once; by default a tenth, at least 1. It holds once a worker of this app has started, or
        `jobs.declare()` was called. Raises InvalidOption.
        """
        return self._limits.add(declared_limit(self, template, concurrency, rate, burst))

    @property
    def limits(self) -> AppLimits:
        """What holds now: `jobs.limits.status(…)`, `.pause(…)`, `.set(…)`."""
        app: Any = self
        return AppLimits(app)

    def declare(self, *, force: bool = False) -> Declared:
        """Put its schedules and limits into the store, as its workers do at start. Says what became of the schedules.

        `force`: override those of a newer release.
        """
        from tenure.maintenance.limits import declare_limits
        from tenure.maintenance.maintenance import log_declared
        from tenure.schedules.timetable import Timetable

        app: Any = self
        client, release = app.client(), app.settings.release or ""
        program: Program = app.program
        done = declare_limits(client.store, program.source, release, program.limits(), force=force)
        log_declared(program.source, release, "limits", done)
        timetable = Timetable(client.store, client.notifier)
        return timetable.declare(program.source, release, program.schedules(), force=force)


class AppLimits:
    """Reads and changes limits and keys. Each name is a key, a template, or what `jobs.limit(…)` returned.

    Example: `jobs.limits.pause("shop:42", "10m", why="too many 429")`. The audit trail names the app. An unknown name
    raises UnknownLimit: a limit is known once a worker of its app has started, or `jobs.declare()` was called.
    """

    def __init__(self, app: AppPort) -> None:
        self._app = app

    def pause(self, name: str | Limit, for_: Duration | None = None, *, why: str = "") -> None:
        """No job gets a place of this key, or of any key of this limit: for this long, or until `resume`.

        Jobs that have a place go on, also those that are queued and have not begun.

        Example: `jobs.limits.pause(github, "30s")`
        """
        self._here("pause").pause(name_of(name), for_, why)

    async def apause(self, name: str | Limit, for_: Duration | None = None, *, why: str = "") -> None:
        """No job gets a place of this key, or of this limit. Example: `await jobs.limits.apause(github, "30s")`"""
        await self._there(lambda limits: limits.pause(name_of(name), for_, why))

    def resume(self, name: str | Limit) -> bool:
        """End the pause. False: it was not paused. Example: `jobs.limits.resume("shop:42")`

        The pause of a limit does not end those of its keys, such as a job makes that snoozes one.
        """
        return self._here("resume").resume(name_of(name))

    async def aresume(self, name: str | Limit) -> bool:
        """End the pause. False: it was not paused. Example: `await jobs.limits.aresume("shop:42")`"""
        return await self._there(lambda limits: limits.resume(name_of(name)))

    def set(
        self,
        name: str | Limit,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
    ) -> None:
        """Replace the bounds that the code declares for a key, or a limit, also after a deploy.

        Bounds that are not given stay; a new rate without a burst gets the default one, a tenth. Raises InvalidOption.
        Example: `jobs.limits.set("shop:42", concurrency=10)`
        """
        self._here("set").set(name_of(name), concurrency=concurrency, rate=rate, burst=burst)

    async def aset(
        self,
        name: str | Limit,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
    ) -> None:
        """Replace the declared bounds. Example: `await jobs.limits.aset("shop:42", concurrency=10)`"""
        await self._there(lambda limits: limits.set(name_of(name), concurrency=concurrency, rate=rate, burst=burst))

    def reset(self, name: str | Limit) -> bool:
        """Restore the bounds that the code declares. False: nothing was set. Example: `jobs.limits.reset("shop:42")`"""
        return self._here("reset").reset(name_of(name))

    async def areset(self, name: str | Limit) -> bool:
        """Restore the bounds that the code declares. Example: `await jobs.limits.areset("shop:42")`"""
        return await self._there(lambda limits: limits.reset(name_of(name)))

    def status(self, key: str | Limit) -> KeyStatus:
        """A key now: its places, the jobs that have them, the next token. Example: `jobs.limits.status("shop:42")`

        Not a limit of many keys, of which `list()` tells: InvalidOption.
        """
        return self._here("status").key(name_of(key))

    async def astatus(self, key: str | Limit) -> KeyStatus:
        """A key now. Example: `(await jobs.limits.astatus("shop:42")).key.held`"""
        return await self._there(lambda limits: limits.key(name_of(key)))

    def list(self) -> tuple[LimitStatus, ...]:
        """All limits that hold, by name, with their bounds and who set them."""
        return self._here("list").all()

    async def alist(self) -> tuple[LimitStatus, ...]:
        """All limits that hold, by name, with their bounds and who set them."""
        return await self._there(lambda limits: limits.all())

    def _here(self, verb: str) -> Limits:
        refuse_on_loop(f"jobs.limits.{verb}(…)", f"await jobs.limits.a{verb}(…)")
        return self._of(self._app.client())

    async def _there(self, call: Callable[[Limits], T]) -> T:
        client = await self._app.aclient()
        return await aside(lambda: call(self._of(client)))

    def _of(self, client: Any) -> Limits:
        from tenure.operations.admin import Admin

        app: Any = self._app
        client.refuse_beside_transaction("a limit is read and changed beside it: do it before or after the block")
        return Admin(client.store, client.notifier, self._app.settings, who=app.program.source).limits
