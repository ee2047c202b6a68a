"""Fairness of the roster: a duty that is due has its turn within a few turns, whatever becomes of the others' turns.

The roster itself is played, under a clock of its own. Before each turn the search chooses what becomes of it: it finds
nothing, its batch is full, it fails, it takes long, or somebody hurries a duty meanwhile. Every sequence of choices up
to a depth is played. `Broken` rosters show that the search finds a duty that starves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from tenure.errors import StoreError
from tenure.maintenance.roster import Roster, Row, Turn

DUTIES = ("promote", "fire", "rescue")
CHOICES = ("nothing", "full", "fails", "slow", "hurried")
NewRoster = Callable[[Callable[[], float]], Roster]


class _Play:
    """One story: the choices in their order, then always the first duty's batch is full."""

    def __init__(self, new_roster: NewRoster, choices: Sequence[str]) -> None:
        self.time, self.story, self._choices = 0.0, list[str](), list(choices)
        self._roster = new_roster(lambda: self.time)
        self._last = dict.fromkeys(DUTIES, 0)  #: the turn in which each duty ran last, or was not due
        for name in DUTIES:
            self._roster.add(Row(name, lambda _, name=name: self._turn(name), 1.0, batch=10))  # type: ignore[misc]

    def _turn(self, name: str) -> Turn:
        choice = self._choices.pop(0) if self._choices else "full"
        self.story.append(f"{name}: {choice}")
        self._last[name] = len(self.story)
        self.time += 2.0 if choice == "slow" else 0.01
        if choice == "fails":
            raise StoreError("no")
        if choice == "hurried":
            self._roster.hurry(DUTIES[0])
        return Turn(more=choice == "full")

    def run(self, turns: int) -> str:
        """The duty that was due for more than this many turns and had none; empty: there is none."""
        while len(self.story) < turns:
            late = {lag.duty for lag in self._roster.lags() if lag.seconds > 0.0 and not lag.error}
            for name in DUTIES:
                if name not in late:
                    self._last[name] = len(self.story)
                elif len(self.story) - self._last[name] > len(DUTIES):
                    return name
            pause = self._roster.step()  # which lets time pass itself
            self.time += pause
        return ""


def counterexample(new_roster: NewRoster, depth: int = 5) -> list[str]:
    """The shortest story in which a duty starves; empty: there is none within the depth."""
    for length in range(depth + 1):
        for choices in product(CHOICES, repeat=length):
            play = _Play(new_roster, choices)
            starved = play.run(length + 4 * len(DUTIES))
            if starved:
                return [*play.story, f"=> {starved} is due, and has had no turn for {len(DUTIES)} turns"]
    return []
