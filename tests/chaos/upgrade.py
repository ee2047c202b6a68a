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

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from crash.harness import until
from tenure.core.lifecycle import State
from tenure.errors import StoreError
from tenure.ports import QueueView

from .faults import Kind
from .nemesis import Nemesis
from .profiles import LOAD
from .stage import TODAY, Stage

SCALE = 0.5  #: of the load
FLOWS_SECONDS = 120.0
#: faults that the nemesis does with today's code itself: a store with an older schema is closed to it
OURS = frozenset({"ghost writes", "false hints", "long transaction"})


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run. `moves`: how one host and one client go as it begins; `migrated`: today's code has the store.

    `load`: what a client with today's code does in it.
    """

    name: str
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

    def of(self, kinds: Sequence[Kind]) -> list[Kind]:
        """The faults that can be played in it."""
        return [kind for kind in kinds if self.migrated or kind.full_name not in OURS]


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
    Phase("old", migrated=False),
    Phase("mixed", "forward"),
    Phase("new", "forward", load="flows"),
    Phase("back", "back"),
    Phase("old again", "back"),
)
