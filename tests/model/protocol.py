"""The ownership protocol as steps: one job, two workers, their supervisors, and what can go wrong between them.

Read `core/lifecycle.py` and `world.py` first. What a verb may do and where an outcome leads is taken from the former
(`MOVES`, `legal`, `decide`); here are the steps, their actors and order, and what may happen in between. Every rule
that keeps the promise is a flag of `Guards`. The search shows that nothing goes wrong with all of them, and that each
one is needed.

How the world is made small, without losing a story:

- Time is not a number. A lease can run out only while it is not renewed, and (this is a guard) only after the deadline
  of its worker, at four fifths of the lease. What can happen before that can happen in any order.
- A request is a step of its own, and so is its reply where the difference matters. A request whose sender is gone, or
  has given up and asks again, is the `stray`: it may still be carried out at any later time. There is at most one.
- When a worker's process is gone and its row is dead, its replacement takes its seat; what is left of the old one
  belongs to FORMER.
- Any worker may ask for a job at any time, so lost, late and repeated rings change nothing. What a queue of messages
  may do, and what it is good for, is left to `messages.py`; the wait after an outage, to `declarations.py`.
- `once` is written like progress; solo jobs and keys have no part in ownership, and schedules a search of their own.
- A story has at most `MISHAPS` faults and turns (a handler fails or is drained, an operator cancels or replays).
  Together with the budgets of `decide` that bounds the attempts.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.core.lifecycle import ENDED, State

from .search import Step
from .world import (
    BOTH,
    FORMER,
    LOST,
    MISHAPS,
    NAMES,
    START,
    Claim,
    Guards,
    Job,
    Look,
    Next,
    Process,
    Row,
    Stray,
    Supervisor,
    Worker,
    World,
    active,
    allows,
    at_rest,
    decided,
    in_table,
    normal,
    owner_is_dead,
    owns,
    put,
    stands,
    together,
    wanted,
)


class Protocol:
    """Checked in every world: no single fault makes two workers run the job at once (`together`).

    Checked at every step: it is a row of `MOVES`; only the owner's writes are accepted, one outcome an attempt, and
    its sender is told so; attempts rise by one; no lease is run twice; a requested cancel is kept; the dead stay
    dead; a job pays for no more crashes than faults.
    """

    name = "ownership"
    start = START
    normal = staticmethod(normal)
    at_rest = staticmethod(at_rest)
    broken = staticmethod(together)

    def __init__(self, guards: Guards, mishaps: int = MISHAPS) -> None:
        self.guards = guards
        self.mishaps = mishaps

    def lost(self, world: World) -> str:
        running = "".join(
            f", and {name} runs attempt {worker.holds}"
            for name, worker in zip(NAMES, world.workers, strict=False)
            if active(worker)
        )
        return f"Tenure alone can never again end the job and stop all its code: {stands(world.job)}{running}"

    def sight(self, world: World) -> State:
        return world.job.state

    def engine(self, world: World) -> Iterator[Next]:
        if world.outage:
            yield from self._outage(world)
            return
        for w in BOTH:
            if world.workers[w].process is Process.UP:
                yield from self._code(world, w)
                yield from self._reply(world, w)
                yield from self._owned(world, w)
                yield from self._ask(world, w)
            yield from self._requests(world, w)
            yield from self._supervise(world, w)
        yield from self._stray(world)
        yield from self._scan(world)

    def chances(self, world: World) -> Iterator[Next]:
        for w in BOTH:
            yield from self._wake(world, w)
            if not world.outage:
                yield from self._progress(world, w)
        if world.faults + world.turns == self.mishaps:
            return
        if not world.outage:
            yield from self._operator(world)
        if world.job.state in ENDED:  # what is under way is played to its end; nothing but a replay begins
            return
        for w in BOTH:
            yield from self._handler_turns(world, w)
            yield from self._worker_fails(world, w)
            if not world.outage:
                yield from self._network_fails(world, w)
        if not world.outage:
            yield from self._store_fails(world)

    # ── a worker claims, and runs ──

    def _ask(self, world: World, w: int) -> Iterator[Next]:
        worker, guards = world.workers[w], self.guards
        if world.job.state is not State.QUEUED or worker.claim is not Claim.NONE:
            return
        if worker.look and guards.owned_read_while_no_claim_in_flight:
            return
        if worker.row is Row.FRESH or not guards.claim_checks_worker_alive:
            yield Step(f"{NAMES[w]} sends a claim", put(world, w, worker._replace(claim=Claim.OPEN)))

    def _grant(self, world: World, w: int, story: str) -> Next:
        """A claim commits."""
        job, guards = world.job, self.guards
        if guards.claim_checks_queued and job.state is not State.QUEUED:
            return Step(f"{story}: there is nothing to claim", world)
        broken = ""
        attempt = job.attempt + 1 if guards.attempt_rises_with_every_claim else max(job.attempt, 1)
        if not allows("claim", job.state):
            broken = f"a claim took the job although {stands(job)}"
        elif job.cancel_asked:
            broken = "a job that was to be cancelled is run again"
        elif attempt == job.attempt:
            broken = f"two claims were granted the same number, {attempt}"
        granted = world._replace(job=job._replace(state=State.PROCESSING, attempt=attempt, owner=w))
        if w != FORMER:
            worker = world.workers[w]
            granted = put(granted, w, worker._replace(begun=worker.begun & ~(1 << attempt)))
        return Step(f"{story}: attempt {attempt} is granted to {NAMES[w]}", granted, broken)

    def _reply(self, world: World, w: int) -> Iterator[Next]:
        worker = world.workers[w]
        if worker.claim is not Claim.GRANTED:
            return
        story = f"{NAMES[w]} hears that attempt {worker.granted} is granted"
        if not worker.runs or not self.guards.second_claim_stops_old_code_first:
            taken = put(world, w, worker._replace(claim=Claim.NONE, granted=0))
            yield from self._start(taken, w, worker.granted, story)
        elif not worker.ending:
            stopping = put(world, w, worker._replace(ending=LOST))
            yield Step(f"{story}, but its code of attempt {worker.holds} still runs: it stops that first", stopping)

    def _start(self, world: World, w: int, attempt: int, story: str) -> Iterator[Next]:
        worker = world.workers[w]
        if worker.holds and not worker.runs:  # its last outcome is still under way, and stays so
            if world.stray:
                return
            world = world._replace(stray=Stray(w, worker.holds, worker.ending))
        broken = ""
        if worker.runs:
            broken = f"{NAMES[w]} runs the job twice at once"
        elif worker.begun >> attempt & 1:
            broken = f"{NAMES[w]} runs attempt {attempt} twice"
        begun = worker.begun | 1 << attempt
        started = worker._replace(holds=attempt, runs=True, ending="", begun=begun)
        yield Step(f"{story}, and runs it", put(world, w, started), broken)

    def _code(self, world: World, w: int) -> Iterator[Next]:
        worker = world.workers[w]
        if not worker.runs:
            return
        if wanted(world, w):
            yield self._returns(world, w)
        if worker.ending:
            yield Step(f"{NAMES[w]}'s code of attempt {worker.holds} has stopped", self._over(world, w, worker.ending))

    def _returns(self, world: World, w: int) -> Next:
        worker = world.workers[w]
        ending = LOST if worker.ending == LOST else "completed"
        return Step(f"{NAMES[w]}'s code of attempt {worker.holds} returns", self._over(world, w, ending))

    def _over(self, world: World, w: int, ending: str) -> World:
        worker = world.workers[w]
        if ending == LOST:
            return put(world, w, worker._replace(holds=0, runs=False, ending=""))
        return put(world, w, worker._replace(runs=False, ending=ending))

    # ── requests reach the store ──

    def _requests(self, world: World, w: int) -> Iterator[Next]:
        worker = world.workers[w]
        if worker.claim is Claim.OPEN:
            step = self._grant(world, w, f"{NAMES[w]}'s claim commits")
            granted, worker = step.world.job is not world.job, step.world.workers[w]
            if granted:
                worker = worker._replace(claim=Claim.GRANTED, granted=step.world.job.attempt)
            else:
                worker = worker._replace(claim=Claim.NONE)
            yield step._replace(world=put(step.world, w, worker))
        if worker.holds and worker.process in (Process.UP, Process.STOPPED, Process.PAUSED):
            yield from self._send_outcome(world, w)

    def _send_outcome(self, world: World, w: int) -> Iterator[Next]:
        """The request is carried out even while its sender is stopped; the reply then waits for it."""
        worker = world.workers[w]
        attempt, ending = worker.holds, worker.ending
        if worker.runs and (self.guards.code_stops_before_finish or ending in ("", LOST)):
            return
        awake = worker.process is Process.UP
        if not awake and (attempt, w, ending) in world.job.ends:
            return
        step = self._finish(world, w, attempt, ending, f"the outcome of {NAMES[w]}'s attempt {attempt}, {ending},")
        if awake:
            worker = worker._replace(ending=LOST) if worker.runs else worker._replace(holds=0, ending="")
        yield step._replace(world=put(step.world, w, worker))

    def _stray(self, world: World) -> Iterator[Next]:
        if not world.stray:
            return
        w, attempt, ending = world.stray
        before = world._replace(stray=())
        if ending:
            story = f"late, the outcome of {NAMES[w]}'s attempt {attempt}, {ending},"
            yield self._finish(before, w, attempt, ending, story)
        else:
            yield self._grant(before, w, f"late, a claim of {NAMES[w]} commits")

    def _lands(self, job: Job, w: int, attempt: int) -> bool:
        """The condition in every owner's write: progress, once, finish."""
        guards = self.guards
        return (
            (job.state is State.PROCESSING or not guards.state_checked_in_finish)
            and (job.attempt == attempt or not guards.lease_attempt_checked)
            and (job.owner == w or not guards.lease_worker_checked)
        )

    def _progress(self, world: World, w: int) -> Iterator[Next]:
        """Only a former owner's: any other progress would change nothing here."""
        worker, job = world.workers[w], world.job
        if not worker.runs or worker.process is not Process.UP or (owns(job, w) and job.attempt == worker.holds):
            return
        story = f"{NAMES[w]}'s code of attempt {worker.holds} reports progress"
        if self._lands(job, w, worker.holds):
            broken = f"progress of {NAMES[w]}'s attempt {worker.holds} is stored although {stands(job)}"
            yield Step(story, world, broken)
        elif worker.ending != LOST:
            lost = put(world, w, worker._replace(ending=LOST))
            yield Step(f"{story}, and hears that the lease is lost", lost)

    def _finish(self, world: World, w: int, attempt: int, ending: str, story: str) -> Next:
        job = world.job
        if self._lands(job, w, attempt):
            broken = ""
            if not (owns(job, w) and job.attempt == attempt):
                broken = f"{NAMES[w]}'s attempt {attempt} is accepted although {stands(job)}"
            return self._end(world, "finish", w, attempt, ending, f"{story} is stored", broken)
        if (attempt, w, ending) not in job.ends:
            return Step(f"{story} is refused", world)
        if self.guards.finish_remembers_last_end:
            return Step(f"{story} is sent again, and has landed", world)
        broken = f"{NAMES[w]} is told that its outcome was refused, although it is stored"
        return Step(f"{story} is sent again, and refused", world, broken)

    def _end(self, world: World, verb: str, w: int, attempt: int, ending: str, story: str, broken: str = "") -> Next:
        """An attempt ends in the store, as `decide` says."""
        job = world.job
        cancel = job.cancel_asked and self.guards.cancel_turns_retry_into_cancelled
        state, failures, crashes = decided(job.failures, job.crashes, cancel, ending)
        ends = (*job.ends, (attempt, w, ending))
        after = job._replace(state=state, failures=failures, crashes=crashes, ends=ends)
        if not in_table(verb, job.state, state, ending):
            broken = broken or f"{verb} moved the job from {job.state} to {state}"
        if any(end[:2] == (attempt, w) for end in job.ends):
            broken = broken or f"{NAMES[w]}'s attempt {attempt} has ended twice"
        if crashes > max(job.crashes, world.guilty):
            faults = "a single fault" if world.guilty else "no fault"
            broken = broken or f"the job is charged crash {crashes} after {faults} that may cost one"
        return Step(f"{story}: the job is {state}", world._replace(job=after), broken)

    # ── the beat answers ──

    def _owned(self, world: World, w: int) -> Iterator[Next]:
        worker, job = world.workers[w], world.job
        if worker.look:
            yield from self._settle_difference(world, w, *worker.look)
            return
        if worker.claim is not Claim.NONE and self.guards.owned_read_while_no_claim_in_flight:
            return
        seen = job.attempt if owns(job, w) else 0
        cancel = bool(seen) and job.cancel_asked
        # A read that says nothing new is left out, unless the answer to an outcome can overtake its answer.
        if seen != worker.holds or (seen and not worker.runs) or (cancel and not worker.ending):
            look = Look(seen, seen == worker.holds, cancel)
            story = f"{NAMES[w]} asks what it owns, and the store reads {_owned_text(look)}"
            yield Step(story, put(world, w, worker._replace(look=look)))

    def _settle_difference(self, world: World, w: int, seen: int, known: bool, cancel: bool) -> Iterator[Next]:
        guards, worker = self.guards, world.workers[w]._replace(look=())
        adopts = guards.owned_adopts_lost_reply and not (known and guards.owned_skips_what_just_ended)
        story = f"{NAMES[w]} hears that it owns {_owned_text(Look(seen, known, cancel))}"
        world = put(world, w, worker)
        if worker.holds == seen:
            if cancel and worker.runs and not worker.ending and guards.owned_tells_cancel:
                story, world = f"{story}, and stops it", put(world, w, worker._replace(ending="cancelled"))
            yield Step(story, world)
        elif worker.runs and worker.ending != LOST and guards.owned_drops_lost_lease:
            yield Step(f"{story}, and stops attempt {worker.holds}", put(world, w, worker._replace(ending=LOST)))
        elif seen and adopts and not worker.runs:
            yield from self._start(world, w, seen, f"{story}, whose reply it never got")
        else:
            yield Step(story, world)

    # ── the supervisor ──

    def _supervise(self, world: World, w: int) -> Iterator[Next]:
        worker, name = world.workers[w], NAMES[w]
        if worker.supervisor is Supervisor.AWAY:
            yield from self._unattended(world, w)
            return
        if worker.process in (Process.CRASHED, Process.KILLED):
            if worker.runs:
                quiet = put(world, w, worker._replace(runs=False))
                yield Step(f"{name}'s supervisor kills all that {name} had started", quiet)
            if not worker.runs or not self.guards.group_killed_before_settle:
                yield self._settle(world, w)
        elif worker.process is Process.STOPPED and self.guards.stopped_worker_is_killed:
            yield from self._kill(world, w, Process.CRASHED, f"{name}'s supervisor sees it stopped, and kills it")
        elif worker.row is not Row.FRESH:
            yield from self._renew(world, w)
        if worker.supervisor is Supervisor.BACK and not any(map(_unsettled, world.workers)):
            steady = put(world, w, worker._replace(supervisor=Supervisor.STEADY))
            yield Step(f"{name}'s supervisor has been back for a lease", steady)

    def _renew(self, world: World, w: int) -> Iterator[Next]:
        worker, name = world.workers[w], NAMES[w]
        if worker.row is Row.DEAD and self.guards.renew_refuses_dead:
            yield from self._kill(world, w, Process.KILLED, f"{name}'s supervisor hears that it is dead, and kills it")
            return
        broken = f"{name} was dead, and lives again" if worker.row is Row.DEAD else ""
        yield Step(f"{name} is renewed", put(world, w, worker._replace(row=Row.FRESH)), broken)

    def _unattended(self, world: World, w: int) -> Iterator[Next]:
        """This worker is not renewed: its deadline kills it, and its lease runs out."""
        worker, name = world.workers[w], NAMES[w]
        if worker.process is Process.UP:
            yield from self._kill(world, w, Process.KILLED, f"{name} is not renewed, and is killed at its deadline")
        if worker.row is Row.FRESH and (worker.process is not Process.UP or not self.guards.self_fence_before_expiry):
            yield Step(f"{name}'s lease runs out", put(world, w, worker._replace(row=Row.EXPIRED)))
        if world.outage or worker.process is Process.PAUSED:
            return
        back = worker._replace(supervisor=Supervisor.BACK)
        if worker.process is Process.GONE:
            story = f"a supervisor starts again on {name}'s host, and finds it gone"
            yield self._replaced(self._declare(world, w, back, story), w)
        else:
            yield Step(f"{name}'s supervisor is back", put(world, w, back))

    def _kill(self, world: World, w: int, process: Process, story: str) -> Iterator[Next]:
        worker = world.workers[w]
        for after, sent in self._in_flight(world, w):
            yield Step(f"{story}{sent}", put(after, w, Worker(worker.row, process, worker.supervisor)))

    def _settle(self, world: World, w: int) -> Next:
        worker, job, name = world.workers[w], world.job, NAMES[w]
        ending = "crashed" if worker.process is Process.CRASHED else "released"
        story = f"{name}'s supervisor settles: {name} is dead"
        step = Step(story, put(world, w, worker._replace(row=Row.DEAD)))
        if owns(job, w) or (job.state is State.PROCESSING and not self.guards.settle_checks_owner):
            broken = "" if owns(job, w) else f"{name}'s supervisor ended an attempt although {stands(job)}"
            story = f"{story}, attempt {job.attempt} {ending}"
            step = self._end(step.world, "finish", w, job.attempt, ending, story, broken)
        return step if worker.runs or step.broken else self._replaced(step, w)

    def _replaced(self, step: Next, w: int) -> Next:
        """A new worker takes the seat of w; what is left of w belongs to FORMER."""
        world, name = step.world, NAMES[w]
        fresh = Worker(supervisor=world.workers[w].supervisor)
        if not self.guards.new_worker_id_each_start:
            broken = step.broken or f"{name} was dead, and lives again"
            return Step(f"{step.story}; it starts again under the same id", put(world, w, fresh), broken)
        job, stray = world.job, world.stray
        ends = tuple((attempt, FORMER if worker == w else worker, ending) for attempt, worker, ending in job.ends)
        world = world._replace(
            job=job._replace(ends=ends, owner=FORMER if job.owner == w else job.owner),
            stray=stray._replace(worker=FORMER) if stray and stray.worker == w else stray,
        )
        story = f"{step.story}; its replacement, under a new id, is {name} from here on"
        return Step(story, put(world, w, fresh), step.broken)

    # ── scans ──

    def _scan(self, world: World) -> Iterator[Next]:
        if world.scan:
            yield self._rescue(world)
            return
        for w in BOTH:
            scanner, other = world.workers[w].supervisor, world.workers[1 - w]
            expired = other.row is Row.EXPIRED or (other.row is not Row.DEAD and not self.guards.death_needs_expiry)
            steady = scanner is Supervisor.STEADY or not self.guards.scanner_waits_after_absence
            if expired and steady and scanner is not Supervisor.AWAY:
                yield self._declare(world, 1 - w, other, f"{NAMES[w]}'s supervisor scans")
        if all(worker.supervisor is Supervisor.AWAY for worker in world.workers):
            return
        if owner_is_dead(world) and self.guards.rescue_level_triggered:
            yield Step(f"a scan reads that the owner of attempt {world.job.attempt} is dead", world._replace(scan=True))
        if allows("promote", world.job.state):
            yield Step("the job is due, and queued", world._replace(job=world.job._replace(state=State.QUEUED)))

    def _declare(self, world: World, w: int, worker: Worker, story: str) -> Next:
        """Without level-triggered rescue this is the only time a job is taken back: what commits later is missed."""
        world = put(world, w, worker._replace(row=Row.DEAD))
        story = f"{story}: {NAMES[w]} is declared dead"
        if self.guards.rescue_level_triggered or not owner_is_dead(world):
            return Step(story, world)
        return self._end(world, "rescue", w, world.job.attempt, "crashed", f"{story}, its attempt taken back")

    def _rescue(self, world: World) -> Next:
        job, world = world.job, world._replace(scan=False)
        story, broken = "the rescue commits", ""
        if not owner_is_dead(world):
            if self.guards.rescue_predicate_in_write:
                return Step(f"{story}: there is nothing to take back", world)
            broken = f"a rescue took the job back although {stands(job)}"
        return self._end(world, "rescue", job.owner, job.attempt, "crashed", story, broken)

    def _outage(self, world: World) -> Iterator[Next]:
        for w in BOTH:
            if world.workers[w].process is Process.UP:
                yield from self._code(world, w)
            yield from self._unattended(world, w)
        back = world._replace(outage=False)
        for w in BOTH:
            worker = world.workers[w]
            if worker.process not in (Process.PAUSED, Process.GONE):
                back = put(back, w, worker._replace(supervisor=Supervisor.BACK))
        yield Step("the store is back", back)

    # ── what can't be relied on ──

    def _wake(self, world: World, w: int) -> Iterator[Next]:
        worker, name = world.workers[w], NAMES[w]
        up = put(world, w, worker._replace(process=Process.UP))
        if worker.process is Process.STOPPED:
            yield Step(f"{name} is continued", up)
        elif worker.process is Process.PAUSED:
            yield Step(f"{name}'s machine wakes, {name} before its supervisor", up)
        elif worker.process is Process.UP and worker.runs and not wanted(world, w):
            yield self._returns(world, w)

    def _handler_turns(self, world: World, w: int) -> Iterator[Next]:
        worker, name = world.workers[w], NAMES[w]
        if worker.process is not Process.UP or not worker.runs or worker.ending:
            return
        world = world._replace(turns=world.turns + 1)
        yield Step(f"{name}'s code of attempt {worker.holds} raises", self._over(world, w, "failed"))
        drained = put(world, w, worker._replace(ending="released"))
        yield Step(f"{name} drains, and asks its code of attempt {worker.holds} to stop", drained)

    def _operator(self, world: World) -> Iterator[Next]:
        job = world.job
        world = world._replace(turns=world.turns + 1)
        if job.state is State.PROCESSING:
            yield Step("an operator asks to cancel the job", world._replace(job=job._replace(cancel_asked=True)))
        elif allows("cancel", job.state):
            yield Step("an operator cancels the job", world._replace(job=job._replace(state=State.CANCELLED)))
        elif allows("replay", job.state):
            again = job._replace(state=State.QUEUED, failures=0, crashes=0, cancel_asked=False)
            yield Step("an operator replays the job", world._replace(job=again))

    def _fault(self, world: World, *, guilty: bool = True, excused: bool = False) -> World:
        """The promise "never two at once" is for a single fault."""
        excused = excused or world.excused or world.faults > 0
        return world._replace(faults=world.faults + 1, guilty=world.guilty + guilty, excused=excused)

    def _worker_fails(self, world: World, w: int) -> Iterator[Next]:
        worker, name = world.workers[w], NAMES[w]
        if worker.process is not Process.UP:
            return
        fault = self._fault(world)
        away = worker._replace(supervisor=Supervisor.AWAY)
        yield Step(f"{name} is sent SIGSTOP", put(fault, w, worker._replace(process=Process.STOPPED)))
        if worker.supervisor is not Supervisor.AWAY:
            yield Step(f"{name}'s supervisor is stopped, or cut off from the store", put(fault, w, away))
        if world.workers[1 - w].process is not Process.PAUSED:  # otherwise no worker is left to go on
            paused = put(self._fault(world, excused=True), w, away._replace(process=Process.PAUSED))
            yield Step(f"{name}'s whole machine is paused", paused)
        for after, sent in self._in_flight(fault, w):
            crashed = Worker(worker.row, Process.CRASHED, worker.supervisor, runs=worker.runs)
            yield Step(f"{name} crashes{sent}", put(after, w, crashed))
            gone = Worker(worker.row, Process.GONE, Supervisor.AWAY)
            yield Step(f"{name} and its supervisor are lost{sent}", put(after, w, gone))

    def _in_flight(self, world: World, w: int) -> Iterator[tuple[World, str]]:
        """Its process ends: what it had sent is lost, or stays on its way. (An outage leaves nothing on its way.)"""
        worker = world.workers[w]
        yield world, ""
        if world.stray or world.outage:
            return
        if worker.claim is Claim.OPEN:
            yield world._replace(stray=Stray(w)), ", its claim still under way"
        if worker.holds and not worker.runs:
            yield world._replace(stray=Stray(w, worker.holds, worker.ending)), ", its outcome still under way"

    def _network_fails(self, world: World, w: int) -> Iterator[Next]:
        """A lost reply is a request that is cut off and carried out: only for claims is it a step of its own."""
        worker, name = world.workers[w], NAMES[w]
        fault = self._fault(world)
        unclaimed = put(fault, w, worker._replace(claim=Claim.NONE, granted=0))
        if worker.claim is Claim.GRANTED:
            yield Step(f"the reply to {name}'s claim is lost", unclaimed)
        if world.stray:
            return
        if worker.claim is Claim.OPEN:
            yield Step(f"{name} is cut off, its claim still under way", unclaimed._replace(stray=Stray(w)))
        if worker.holds and not worker.runs and worker.process is Process.UP:
            stray = Stray(w, worker.holds, worker.ending)
            again = fault._replace(stray=stray)
            yield Step(f"{name} is cut off, its outcome still under way, and sends it again", again)

    def _store_fails(self, world: World) -> Iterator[Next]:
        job = world.job
        a, b = (worker._replace(supervisor=Supervisor.AWAY) for worker in world.workers)
        outage = self._fault(world, guilty=False)._replace(outage=True, workers=(a, b))
        yield Step("nobody can reach the store", outage)
        if job.state is not State.PROCESSING:
            return
        before = job._replace(state=State.QUEUED, attempt=job.attempt - 1, owner=-1, cancel_asked=False)
        failover = self._fault(world, guilty=False, excused=True)._replace(job=before)
        yield Step(f"the store fails over to a copy without the claim of attempt {job.attempt}", failover)
        if world.faults + world.turns + 2 <= self.mishaps and job.owner != FORMER and world.workers[job.owner].runs:
            story = f"attempt {job.attempt} hangs, its supervisor does not act, and another host takes it back"
            twice = self._fault(self._fault(world))
            yield self._end(twice, "rescue", job.owner, job.attempt, "crashed", story)


def _unsettled(worker: Worker) -> bool:
    """Its supervisor is back, and has yet to renew or settle it: a lease is far more time than that takes."""
    return worker.supervisor is Supervisor.BACK and (
        worker.row is Row.EXPIRED or worker.process in (Process.CRASHED, Process.KILLED)
    )


def _owned_text(look: Look) -> str:
    if not look.seen:
        return "nothing"
    return f"attempt {look.seen}, to be cancelled" if look.cancel else f"attempt {look.seen}"
