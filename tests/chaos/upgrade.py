"""A rolling upgrade, and the way back, under faults: the release before (previous.py) and this code on one store.

    old        the store, its workers and its clients are of the release before
    mixed      `tenure migrate`, then one host and one client have today's code
    new        all of them have, and a client begins to use what only today's code knows: flows, gather, expect
    back       those have ended; one host and one client have the release before again
    old again  all of them have

Processes of the release before run the app of their own tests/chaos: it knows no more than they do. The checker is
today's, and judges the whole history at once: a job that one release began, another one may end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from crash.harness import until
from tenure.core.lifecycle import State
from tenure.errors import StoreError
from tenure.ports import QueueView

from . import history
from .faults import Kind
from .history import Event
from .nemesis import Nemesis
from .profiles import LOAD
from .stage import TODAY, Stage

SCALE = 0.5  #: of the load
FLOWS_SECONDS = 120.0
BEGIN_SECONDS = 120.0
#: faults that the nemesis does with today's code itself: a store with an older schema is closed to it
OURS = frozenset({"ghost writes", "false hints", "long transaction"})


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run. `moves`: how one host and one client go as it begins; `migrated`: today's code has the store.

    `releases`: which there are in it, by name. `load`: what a client with today's code does in it.
    """

    name: str
    releases: tuple[str, ...] = ()
    moves: Literal["forward", "back"] | None = None
    migrated: bool = True
    load: str = ""

    def begin(self, stage: Stage, nemesis: Nemesis) -> None:
        if self.moves is None:
            return
        stage.pen.note("phase", "invoke", name=self.name)
        stage.heal()
        if not stage.migrated:
            stage.migrate()
        if stage.loads:
            stage.end_loads()
            until(lambda: _flows_have_ended(stage), "every flow to have ended", FLOWS_SECONDS)
        release = TODAY if self.moves == "forward" else stage.first
        nemesis.deploy(next(host for host in stage.hosts if host.release is not release), release)
        stage.replace_client(release)
        nemesis.wait_until_all_serve()
        if self.load:
            stage.start_load(self.load, SCALE)
        stage.pen.note("phase", "ok", name=self.name)

    @property
    def begins(self) -> set[str]:
        """What `began` must find in it: each release serves and enqueues."""
        return {f"{kind} {release}" for kind in ("host", "client") for release in self.releases}

    def end(self, stage: Stage) -> None:
        """Wait until each release has served and enqueued in it: that may take longer than the faults do."""
        if self.releases:
            stage.heal()
            until(lambda: self._has_begun(stage), f"{self.begins} in the phase {self.name!r}", BEGIN_SECONDS)

    def _has_begun(self, stage: Stage) -> bool:
        return self.begins <= began(history.read(stage.history))[self.name]

    def of(self, kinds: Sequence[Kind]) -> list[Kind]:
        """The faults that can be played in it."""
        return [kind for kind in kinds if self.migrated or kind.full_name not in OURS]


def began(events: Sequence[Event]) -> defaultdict[str, set[str]]:
    """By phase, between two changes: the releases whose workers began attempts, and whose clients enqueued."""
    found = defaultdict[str, set[str]](set)
    now = PHASES[0].name
    for event in events:
        if event.op == "phase":
            now = event.data["name"] if event.phase == "ok" else ""
        asked = event.op == "begin" or (event.op == "enqueue" and event.phase == "invoke")
        if now and asked and event.actor.startswith(("host", "client")):
            found[now].add(f"{event.actor.partition('-')[0]} {event.actor.split('-')[-2]}")
    return found


def flows_have_ended(queues: Iterable[QueueView]) -> bool:
    """Nothing waits, and nothing will: a job of the load that is only queued may begin to wait once it runs."""
    return not any(
        view.counts.get(State.WAITING) or (view.name == LOAD and any(view.counts.values())) for view in queues
    )


def _flows_have_ended(stage: Stage) -> bool:
    with suppress(StoreError):
        return flows_have_ended(stage.site.store.queues())
    return False


WITHOUT = (Phase(""),)
PHASES = (
    Phase("old", ("1",), migrated=False),
    Phase("mixed", ("1", "2"), "forward"),
    Phase("new", ("2",), "forward", load="flows"),
    Phase("back", ("1", "2"), "back"),
    Phase("old again", ("1",), "back"),
)
