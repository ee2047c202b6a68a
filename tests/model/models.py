"""Every protocol that is searched, with its bounds. Its file says which stories it covers and which another does."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.core.lifecycle import State

from . import declarations, links, messages, places, rates, schedules, seals, signals, times, waiting, world
from .declarations import Declarations, Net
from .messages import Messages
from .places import Places
from .protocol import Protocol
from .rates import RATES, Rates
from .schedules import POLICIES, Schedules
from .seals import Seals
from .search import Machine, Model
from .signals import Signals
from .times import Times
from .waiting import Waiting


def _ownership(guards: world.Guards, mishaps: int) -> Iterator[Machine[world.World]]:
    yield Protocol(guards, mishaps)


def _messages(guards: messages.Guards, mishaps: int) -> Iterator[Machine[messages.World]]:
    yield Messages(guards, min(mishaps, 1), alone=True)
    if mishaps > 1:
        yield Messages(guards, mishaps, alone=True)
    yield Messages(guards, mishaps, alone=False)


def _declarations(guards: declarations.Guards, mishaps: int) -> Iterator[Machine[declarations.World]]:
    yield Declarations(guards, mishaps)


def _schedules(guards: schedules.Guards, mishaps: int) -> Iterator[Machine[schedules.World]]:
    for overlap, catch_up in POLICIES:
        yield Schedules(guards, mishaps, overlap, catch_up)


def _waiting(guards: links.Guards, mishaps: int) -> Iterator[Machine[links.World]]:
    for scene in waiting.scenes(guards):
        yield Waiting(guards, mishaps, scene)


def _signals(guards: signals.Guards, mishaps: int) -> Iterator[Machine[signals.World]]:
    for shared in (False, True):
        yield Signals(guards, mishaps, shared=shared)


def _times(guards: times.Guards, mishaps: int) -> Iterator[Machine[times.World]]:
    yield Times(guards, mishaps)


def _seals(guards: seals.Guards, mishaps: int) -> Iterator[Machine[seals.World]]:
    yield Seals(guards, mishaps)


def _places(guards: places.Guards, mishaps: int) -> Iterator[Machine[places.World]]:
    for scene in places.scenes(guards):
        yield Places(guards, mishaps, scene)


def _rates(guards: rates.Guards, mishaps: int) -> Iterator[Machine[rates.World]]:
    for rate in RATES:
        yield Rates(guards, mishaps, rate)


MODELS = (
    Model("ownership", world.Guards(), _ownership, world.MISHAPS, frozenset(State) - {State.WAITING}),
    Model(
        "messages",
        messages.Guards(),
        _messages,
        messages.MISHAPS,
        frozenset(State) - {State.WAITING, State.SCHEDULED, State.CANCELLED},
    ),
    Model("declarations", declarations.Guards(), _declarations, declarations.MISHAPS, frozenset(Net)),
    Model(
        "schedules", schedules.Guards(), _schedules, schedules.MISHAPS, frozenset({"old", "new", "waits", "catches up"})
    ),
    Model("waiting", links.Guards(), _waiting, links.MISHAPS, waiting.SIGHTS),
    Model("signals", signals.Guards(), _signals, signals.MISHAPS, signals.SIGHTS),
    Model("times", times.Guards(), _times, times.MISHAPS, times.SIGHTS),
    Model("places", places.Guards(), _places, places.MISHAPS, places.SIGHTS),
    Model("rates", rates.Guards(), _rates, rates.MISHAPS, rates.SIGHTS),
    Model("seals", seals.Guards(), _seals, seals.MISHAPS, seals.SIGHTS),
)
