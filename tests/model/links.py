"""The world of `waiting.py`: jobs and the edges between them, asks, transactions under way, and rules to leave out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Literal, NamedTuple

from tenure.core.lifecycle import ENDED, EXPIRED, LIVE, MOVES, State
from tenure.stores.rules import closes

from .search import Step

MISHAPS = 2


def _in(scene: str) -> bool:
    """A rule, with the name of the scene that shows what happens without it."""
    return field(default=True, metadata={"scene": scene})


@dataclass(frozen=True, slots=True)
class Guards:
    """W1 to W7 are the rules of jobs that wait. W1: asks; W2: edges; W3: locks; W5: versions; W7: what is kept."""

    W1_a_stored_child_asks: bool = _in("two parents")
    W1_a_suspended_job_asks: bool = _in("a gatherer")
    W1_a_gathered_child_asks_for_its_gatherer: bool = _in("a gatherer")
    W1_a_skipped_parent_asks_for_its_children: bool = _in("an operator")
    W1_an_ask_is_stored_with_its_cause: bool = _in("two parents")  #: in one transaction, not after the commit
    W1_an_ask_is_a_row_of_its_own: bool = _in("two parents")  #: one that is being answered is not taken for the next
    W1_an_ask_goes_with_its_answer: bool = _in("two parents")  #: in one transaction: neither is there without the other
    W1_an_ask_stays_until_all_are_told: bool = _in("two children")  #: each transaction tells a bounded number
    W2_a_finish_asks: bool = _in("two parents")  #: a linked job that ends, in whichever way
    W2_a_rescue_asks: bool = _in("any end will do")
    W2_a_cancel_asks: bool = _in("an operator")
    W2_an_end_sees_the_link_under_the_lock: bool = _in("two parents")  #: not as it stood when it was claimed
    W2_parents_are_armed_in_order: bool = _in("two and two")  #: of their ids: two looks would wait for each other
    W2_states_are_read_after_arming: bool = _in("two parents")  #: in the next statement: an end may come in between
    W2_ended_parents_are_armed_too: bool = _in("an operator")  #: they may be replayed at this moment
    W2_looked_at_after_the_commit: bool = _in("two parents")  #: a later transaction asks whether an edge is open
    W3_what_is_locked_keeps_its_ask: bool = _in("an operator")  #: it is skipped, not forgotten
    W3_told_under_the_row_lock: bool = _in("an operator")  #: an end that is told can't be replayed meanwhile
    W5_nothing_is_admitted_beside_an_older_worker: bool = _in("an older worker")
    W5_what_an_older_worker_ends_asks_too: bool = _in("an older worker")  #: a trigger does it, not the statement
    W7_prune_spares_the_linked: bool = _in("an operator")  #: as the row stands when it is locked
    W7_prune_looks_for_children: bool = _in("an operator")  #: one that was stored just now has not armed its parents
    W7_delete_looks_for_children: bool = _in("an operator")
    W7_delete_asks_for_its_parents: bool = _in("an operator")  #: they may be kept for it alone
    W7_prune_asks_for_its_parents: bool = _in("a flow")  #: it may have been released by its children, and not told
    W7_telling_links_again: bool = _in("two children")  #: a child whose edge it closes need not arm it
    W7_delete_looks_for_what_it_gathers: bool = _in("a gatherer")
    W7_a_needed_result_is_not_replayed: bool = _in("an operator")
    W7_looked_for_children_under_the_lock: bool = _in("an operator")  #: delete and replay lock first, then look
    W7_a_replay_keeps_the_link: bool = _in("an operator")  #: its children armed it, and will not do so again
    W7_a_replay_opens_edges_again: bool = _in("an operator")
    W7_a_replay_locks_its_parents: bool = _in(
        "an operator"
    )  #: and links them: they are not replayed or removed meanwhile
    W7_a_replay_asks_for_what_it_leaves: bool = _in("a gatherer")  #: what it no longer gathers may be kept for it alone
    W7_what_an_ended_job_gathers_is_cancelled: bool = _in("a gatherer")
    W7_no_replay_before_what_it_gathers_has_ended: bool = _in("a gatherer")  #: a new run gathers others
    W7_gathering_locks_the_gatherer: bool = _in("a gatherer")  #: it is there when its children are stored


# ── The world ───────────────────────────────────────────────────────────────────────────────────────────────────


class Link(NamedTuple):
    """`child` waits until `parent` has completed, or ended. The numbers are those of jobs."""

    child: int
    parent: int
    until: Literal["completed", "ended"] = "completed"
    mine: bool = False  #: the child gathers the parent
    joins: bool = False  #: the child waits for it in the midst of its work


class Edge(StrEnum):
    ABSENT = "absent"  #: its job is not stored yet, or was deleted
    OPEN = "open"
    ARMED = "armed"  #: open, and the end of its parent will be told
    CLOSED = "closed"
    SKIPPED = "skipped"


class Job(NamedTuple):
    state: State | None = State.QUEUED  #: None: not stored yet, or gone
    linked: bool = False
    expired: bool = False
    cancel_asked: bool = False
    suspends: bool = False  #: its handler has ended: it will be suspended
    again: bool = False  #: an operator has replayed it, and wants it to run, whoever gathered it


class Hand(NamedTuple):
    """A transaction under way."""

    verb: str = ""
    job: int = -1
    locks: int = 0  #: a bit for each job whose row it has locked
    seen: tuple[str, ...] = ()  #: what it has read, where that may be out of date

    def locked(self, number: int) -> bool:
        return bool(self.locks >> number & 1)


class World(NamedTuple):
    jobs: tuple[Job, ...]
    edges: tuple[Edge, ...]  #: of each link of the scene
    asks: int = 0  #: a bit for each job; two for one job are as good as one
    hands: tuple[Hand, ...] = (Hand(), Hand())
    unstored: int = 0  #: children in a transaction of a caller, not yet committed
    unsent: int = 0  #: without one of the rules: asks that a process has yet to store
    older: bool = False  #: a worker of an older version is registered
    ghost: bool = False  #: a former owner of the gatherer runs on
    orphan: bool = False  #: a job that was gathered is out of its gatherer's sight, and lives
    mishaps: int = 0


class Scene(NamedTuple):
    name: str
    names: str  #: of the jobs, a letter each
    links: tuple[Link, ...]
    start: World
    chances: frozenset[str]  #: what may happen in it, besides what Tenure does
    most_told: int = 9  #: children that one transaction tells
    flow: bool = False  #: its new jobs are stored in one transaction


Next = Step[World]
IDLE = Hand()
ADMIT = ("look", "looked", "tell", "told")
RUNNABLE = (State.QUEUED, State.PROCESSING)


def _scene(name: str, names: str, links: tuple[Link, ...], chances: str, **others: Any) -> Scene:
    """A letter for each job: large if it is stored already, small if it is in a transaction of a caller."""
    jobs = tuple(Job(State.QUEUED if each.isupper() else None) for each in names)
    made = {link.parent for link in links if link.mine}
    late = sum(1 << number for number, job in enumerate(jobs) if job.state is None and number not in made)
    start = World(jobs, (Edge.ABSENT,) * len(links), unstored=late)
    return Scene(name, names.upper(), links, start, frozenset(chances.split()), **others)


_ENDS = "fail expire cancel"
_PEOPLE = "cancel replay delete prune skip"
SCENES = (
    _scene("two parents", "PQc", (Link(2, 0), Link(2, 1, "ended")), f"crash rescue {_ENDS} {_PEOPLE}"),
    _scene("two and two", "PQcd", (Link(2, 0), Link(2, 1), Link(3, 1), Link(3, 0)), "crash"),
    _scene("any end will do", "Pc", (Link(1, 0, "ended"),), f"link crash rescue {_ENDS} {_PEOPLE}"),
    _scene("two children", "Pcd", (Link(1, 0), Link(2, 0)), f"link crash {_PEOPLE}", most_told=1),
    _scene("an operator", "Pc", (Link(1, 0),), f"link {_ENDS} {_PEOPLE}"),
    _scene("a flow", "Pcd", (Link(1, 0), Link(2, 1)), f"fail {_PEOPLE}", flow=True),
    _scene("a gatherer", "Gk", (Link(0, 1, mine=True),), "crash fail rescue ghost cancel replay delete prune"),
    _scene("a gatherer of any end", "Gk", (Link(0, 1, "ended", mine=True),), "crash fail rescue cancel replay"),
    _scene("a gatherer with a child", "Gkc", (Link(0, 1, mine=True), Link(2, 0)), "fail cancel replay delete prune"),
    _scene("a join", "JP", (Link(0, 1, joins=True),), "crash fail rescue cancel replay delete prune"),
    _scene("an older worker", "Pc", (Link(1, 0),), "older crash fail"),
)


# ── What the code decides ───────────────────────────────────────────────────────────────────────────────────────


@cache
def fate(link: Link, parent: Job) -> Literal["close", "hold", "cancel"]:
    """What the state of its parent means to an edge."""
    if parent.state is None:
        return "close" if link.until == "ended" else "cancel"
    return closes(link.until, parent.state, EXPIRED if parent.expired else None)


@cache
def moved(verb: str, source: State | None, target: State) -> State:
    sources = frozenset[State]() if source is None else frozenset({source})
    if not any(m.verb == verb and sources <= m.sources and target in m.targets for m in MOVES):
        raise AssertionError(f"the table has no {verb} from {source} to {target}")
    return target


def live(job: Job) -> bool:
    return job.state in LIVE


def ended(job: Job) -> bool:
    return job.state in ENDED


# ── Small steps ─────────────────────────────────────────────────────────────────────────────────────────────────


def put(world: World, number: int, job: Job) -> World:
    return world._replace(jobs=(*world.jobs[:number], job, *world.jobs[number + 1 :]))


def put_edge(world: World, number: int, edge: Edge) -> World:
    return world._replace(edges=(*world.edges[:number], edge, *world.edges[number + 1 :]))


def put_hand(world: World, number: int, hand: Hand) -> World:
    return world._replace(hands=(*world.hands[:number], hand, *world.hands[number + 1 :]))


def locked(world: World, number: int) -> bool:
    return any(hand.locks >> number & 1 for hand in world.hands)
