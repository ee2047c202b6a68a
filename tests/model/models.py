"""Every protocol that is searched, with its bounds. Which stories it covers, and which another one, its file says."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.core.lifecycle import State

from . import declarations, messages, schedules, world
from .declarations import Declarations, Net
from .messages import Messages
from .protocol import Protocol
from .schedules import POLICIES, Schedules
from .search import Machine, Model


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


MODELS = (
    Model("ownership", world.Guards(), _ownership, world.MISHAPS, frozenset(State)),
    Model(
        "messages",
        messages.Guards(),
        _messages,
        messages.MISHAPS,
        frozenset(State) - {State.SCHEDULED, State.CANCELLED},
    ),
    Model("declarations", declarations.Guards(), _declarations, declarations.MISHAPS, frozenset(Net)),
    Model(
        "schedules", schedules.Guards(), _schedules, schedules.MISHAPS, frozenset({"old", "new", "waits", "catches up"})
    ),
)
