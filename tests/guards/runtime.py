"""The guards of what runs jobs: workers, supervisors, the scan, permits, schedules, other people's schedulers."""

# ruff: noqa: E501 (a guard a line, however long: it is a table)
from __future__ import annotations

from . import Guard, Table

HERE = "unit/test_runtime_guards.py::test_"
ROSTER = "unit/test_maintenance.py::test_"
SQLITE = "stores/sqlite/file.py"
TABLE = Table(
    (
        # ── a worker and what the store says it owns ──
        Guard("the beat finds and runs the jobs of a claim that got no reply", "worker/beat.py", "                if lease not in unflushed and held", "                if False and held", "crash/test_lost_replies.py::test_every_job_whose_claim_was_not_heard_runs_once_within_a_beat[sqlite]"),
        Guard("what has ended and is not stored yet is not run again", "worker/beat.py", "if lease not in unflushed and held", "if held", HERE + "what_has_ended_and_is_not_stored_yet_is_not_run_again"),
        Guard("what was stored while the owned ones were read is not run again", "worker/beat.py", "backlog.leases() | flushed_meanwhile", "backlog.leases()", HERE + "what_is_stored_while_the_owned_ones_are_read_is_not_run_again"),
        Guard("what is owned is read between two claims only", "worker/beat.py", "        async with slots.claim_turn:  # with a claim in flight", "        if True:  # with a claim in flight", HERE + "a_claim_waits_until_the_owned_ones_are_read"),
        Guard("a lease that is lost stops its code", "worker/beat.py", "                if held is None:\n                    attempt.request_stop(\"lease_lost\", None)", "                if held is None:\n                    pass", HERE + "a_lease_that_is_lost_stops_its_code_at_the_next_look"),
        Guard("a lease that is lost stops its code", "worker/progress.py", "                    attempt.request_stop(\"lease_lost\", None)\n", "                    pass\n", HERE + "a_lease_that_is_lost_stops_its_code_at_its_next_progress"),
        Guard("a cancel that rang unheard is found at the beat", "worker/beat.py", "elif held.cancel_reason is not None:", "elif False:", "crash/test_cancel.py -k 'without_a_ring and sqlite and loop'"),
        Guard("never two of one job in one process", "worker/attempts.py", "if old is not None:  # the store lost a commit", "if False:  # the store lost a commit", HERE + "two_attempts_of_one_job_never_run_in_one_process"),
        Guard("code that ended in its own transaction has not lost its lease", "worker/beat.py", "if held is None and attempt.finished:", "if False:", HERE + "code_that_ended_in_its_own_transaction_goes_on_until_it_is_done"),
        Guard("an outcome is sent until the store has answered", "worker/flusher.py", "                await self._access.retry_later(\"write\", error)\n", "                return [NotLanded(\"\") for _ in ends]\n", HERE + "an_outcome_is_sent_until_the_store_has_answered"),
        Guard("a handler's last reports are stored before its outcome", "worker/flusher.py", "                if unreported:\n", "                if False:\n", "unit/test_job_log.py"),
        Guard("a stuck worker claims nothing more", "worker/slots.py", " or self.stuck:", ":", HERE + "a_stuck_worker_claims_nothing_more"),
        Guard("a worker of jobs that run alone claims nothing while an outcome is unstored", "worker/slots.py", "if self.alone and not self.empty:", "if self.alone and (self.running or self.successors):", HERE + "a_worker_claims_nothing_beside_the_outcome_of_a_job_that_ran_alone"),
        Guard("an embedded worker claims nothing beside a job that runs alone", "worker/claims.py", "                    slots.alone = bool(claimed)\n", "                    slots.alone = False\n", HERE + "a_worker_claims_nothing_beside_the_outcome_of_a_job_that_ran_alone"),
        Guard("a drained worker hands back what a late claim brings", "worker/attempts.py", "        if slots.handing_back:\n", "        if False:\n", HERE + "what_a_late_claim_brings_to_a_drained_worker_goes_back"),
        Guard("a job that expired is not run", "worker/attempts.py", "elif claimed.expired:", "elif False:", HERE + "a_job_that_is_claimed_too_late_is_not_run"),
        Guard("a job of an unknown task is snoozed, uncharged", "worker/attempts.py", "self._refuse(claimed, Snoozed(delay,", "self._refuse(claimed, Cancelled(", "crash/test_faults.py::test_a_task_that_is_gone_is_snoozed_uncharged_and_runs_when_it_is_back[sqlite]"),
        # ── code stops first ──
        Guard("a thread has no outcome before it has stopped", "worker/executor.py", "                continue  # a thread can't be cancelled", "                outcome = self.verdict\n                break  # a thread can't be cancelled", HERE + "a_thread_has_no_outcome_before_it_has_stopped_even_if_its_waiter_is_cancelled"),
        Guard("a result that is returned too late is no success", "worker/executor.py", "if self.stopping == \"timeout\" or self.stopping == \"lease_lost\":", "if False:", HERE + "what_comes_back_after_its_time_is_no_success"),
        Guard("the first reason to stop stands", "worker/executor.py", "        if self.stopping is not None and reason != \"lease_lost\":\n            return\n", "", HERE + "the_first_reason_to_stop_stands"),
        Guard("an attempt that was asked to stop before it began does not begin", "worker/executor.py", "if self.stopping is not None:  # asked to stop before it began", "if False:  # asked to stop before it began", HERE + "an_attempt_that_is_asked_to_stop_before_it_began_does_not_begin"),
        Guard("a thread learns of its lost lease at its next call", "worker/executor.py", "        if self.stopping == \"lease_lost\":\n            raise ", "        if False:\n            raise ", HERE + "code_that_swallows_its_cancel_hears_at_its_next_word_that_its_lease_is_lost"),
        Guard("a refused once stops its code", "worker/executor.py", "        if found is None:\n            self.host.refused", "        if False:\n            self.host.refused", HERE + "a_lease_that_is_lost_stops_its_code_at_its_word"),
        Guard("a flush that is refused stops its code", "worker/progress.py", "        if not landed and not attempt.finished:\n", "        if False:\n", HERE + "a_lease_that_is_lost_stops_its_code_at_its_word"),
        Guard("the supervisor ends all that a worker left before it settles", "supervisor/processes.py", "        kill_group(pid)\n        end_leftovers(worker.token)", "        pass", "crash/test_poison.py::test_what_a_finished_handler_left_behind_ends_with_its_worker[sqlite]"),
        Guard("a hung thread is killed before it is charged", "supervisor/supervisor.py", "            case \"stuck\":\n                worker.verdicts.update", "            case \"stuck\" if False:\n                worker.verdicts.update", "crash/test_poison.py::test_a_thread_that_ignores_its_timeout_has_no_outcome_before_its_process_is_gone[sqlite]"),
        Guard("jobs beside the guilty one are not charged", "supervisor/settler.py", "    if worker.verdicts:\n        return Released(\"its worker was killed because of another job\")\n    if worker.kill_reason and worker.stopped_since is None:\n        return Released(worker.kill_reason)\n", "", "crash/test_cancel.py::test_a_silent_thread_takes_its_process_along_before_it_is_charged[sqlite]"),
        Guard("a worker that is stopped does not live for ever", "supervisor/watch.py", "elif is_stopped(worker.process.pid):", "elif False:", "crash/test_ghosts.py -k 'frozen and worker and sqlite'"),
        Guard("a worker that does not react to a drain is killed", "supervisor/watch.py", "            if self._given > worker.end_by:", "            if False:", "crash/test_drain.py -k 'even_hear and once'"),
        Guard("no worker is killed for time in which the machine slept", "supervisor/watch.py", "min(now - self._turned, STALL_SECONDS)", "now - self._turned", "crash/test_drain.py -k slept"),
        Guard("a worker that was declared dead is killed", "supervisor/renewer.py", "            elif worker in self._processes:", "            elif False:", "crash/test_fences.py::test_a_worker_that_was_declared_dead_is_ended_and_its_job_runs_elsewhere[sqlite]"),
        Guard("a worker's jobs are settled, however long the store is unavailable", "supervisor/settler.py", "            self._unsettled.append(found)\n\n", "            pass\n\n", "crash/test_stop_without_store.py::test_a_store_that_comes_back_in_time_is_told_all[postgres]"),
        # ── self-fencing ──
        Guard("a worker that can't renew asks its code to stop in time", "worker/child.py", "if ask_at and now > ask_at and not asked and self._loop is not None:", "if False:", "crash/test_store_outage.py -k 'two_leases and postgres and not poll and not nats'"),
        Guard("a worker that hangs together with its supervisor kills itself", "worker/child.py", "            if kill_at and now > kill_at:\n", "            if False:\n", "crash/test_fences.py::test_deaf_code_dies_with_its_own_process_while_its_supervisor_stands_still[sqlite]"),
        Guard("the jobs of a worker that fenced itself are not charged", "supervisor/settler.py", "    if worker.lifeline.fenced:\n", "    if False:\n", "crash/test_store_outage.py -k 'two_leases and postgres and not poll and not nats'"),
        Guard("the deadline is counted from when the renewal was sent", "liveness/holder.py", "    return Renewal.of(sent, lease), alive\n", "    return Renewal.of(boot() + lease, lease), alive\n", "crash/test_store_outage.py -k 'two_leases and postgres and not poll and not nats'"),
        Guard("an embedded worker that was declared dead begins anew", "worker/embedded.py", "if not alive or holder.must_stop:", "if holder.must_stop:", HERE + "an_embedded_worker_that_was_declared_dead_stops_what_it_runs_at_its_next_beat"),
        Guard("an embedded worker that can't renew stops what it runs", "worker/embedded.py", "if not alive or holder.must_stop:", "if not alive:", HERE + "an_embedded_worker_that_cannot_renew_stops_what_it_runs"),
        # ── the loop of the program around an embedded worker ──
        Guard("a loop that is blocked for a lease loses its jobs", "worker/embedded.py", "        if self._serving.caller_is_lost:\n            self._serving.restart(holder)\n", "        if False:\n            self._serving.restart(holder)\n", "programs/test_loops.py::test_a_loop_blocked_for_longer_than_a_lease_loses_its_jobs_and_begins_anew"),
        Guard("jobs of a closed loop are handed back", "worker/stops.py", "        if caller.closed:\n", "        if False:\n", "programs/test_loops.py::test_a_loop_that_ends_before_the_block_hands_its_jobs_back_uncharged"),
        Guard("jobs of a loop that is about to be closed are not charged", "worker/executor.py", "if self._caller is not None and self._caller.ending:", "if False:", "programs/test_loops.py::test_a_loop_that_ends_before_the_block_hands_its_jobs_back_uncharged"),
        Guard("a cancelled block keeps the job of code that has not stopped", "worker/caller.py", "        except asyncio.CancelledError:\n            if not cancelled:", "        except ValueError:\n            if not cancelled:", "programs/test_loops.py::test_a_block_whose_task_is_cancelled_hands_its_jobs_back_first"),
        # ── a process that was cut off declares no worker dead ──
        Guard("a process that has just started declares no worker dead", "maintenance/judge.py", "return now >= self.quiet_until and now", "return now", HERE + "a_process_that_has_just_started_declares_no_worker_dead_for_a_lease"),
        Guard("a process that no longer renews declares no worker dead", "maintenance/judge.py", " and now - self._renewed <= self._lease * AWAY_AFTER", "", HERE + "a_process_that_no_longer_renews_declares_no_worker_dead"),
        Guard("a process that was cut off declares no worker dead for a lease", "maintenance/judge.py", "if now - self._renewed > self._lease * AWAY_AFTER:", "if False:", HERE + "after_an_outage_other_workers_have_a_lease_to_renew"),
        Guard("the duty that is due first has its turn first", "maintenance/roster.py", "min(ready, key=lambda each: each.due)", "ready[0]", ROSTER + "a_duty_that_always_has_more_holds_up_no_other"),
        Guard("a duty that fails leaves the others their turns", "maintenance/roster.py", "        place.not_before = now + pause\n", "", ROSTER + "a_duty_that_always_fails_backs_off_alone_and_is_told_once"),
        Guard("a scan names its witness", "maintenance/maintenance.py", "declare_expired(witness=self.judge.witness, until=until)", "declare_expired(until=until)", HERE + "a_process_with_a_dead_worker_of_its_own_declares_no_worker_dead"),
        Guard("a scan says until when it counts", "maintenance/maintenance.py", "declare_expired(witness=self.judge.witness, until=until)", "declare_expired(witness=self.judge.witness)", HERE + "a_declaration_that_was_delayed_in_flight_declares_no_worker_dead"),
        Guard("a scan checks whether its process was cut off", "maintenance/maintenance.py", "if self.judge.may_declare() and self.judge.witness is not None:", "if self.judge.witness is not None:", HERE + "a_process_that_has_just_started_declares_no_worker_dead_for_a_lease"),
        Guard("only a process that is gone is proof of death", "liveness/holder.py", "        and started(worker.pid) != worker.started\n", "", HERE + "only_a_process_of_this_boot_and_container_that_is_gone_is_proof_of_death"),
        Guard("a process of another boot proves nothing", "liveness/holder.py", "        worker.boot_id == system_clock().boot_id\n        and worker", "        worker", HERE + "only_a_process_of_this_boot_and_container_that_is_gone_is_proof_of_death"),
        Guard("a process of another container proves nothing", "liveness/holder.py", "        and worker.pid_namespace == pid_namespace()\n", "", HERE + "only_a_process_of_this_boot_and_container_that_is_gone_is_proof_of_death"),
        Guard("one's own workers are settled, and not declared", "maintenance/maintenance.py", "if worker.id not in mine and provably_gone(worker)]", "if provably_gone(worker)]", HERE + "only_a_process_of_this_boot_and_container_that_is_gone_is_proof_of_death"),
        Guard("a supervisor that lives has a scan's time to settle its own", "maintenance/maintenance.py", "if seen is None or worker_id in seen]", "]", HERE + "a_worker_that_dies_later_is_left_to_its_own_supervisor_for_one_scan"),
        Guard("what a dead worker left ends before its jobs start again", "maintenance/maintenance.py", "            end_leftovers(token_of(worker_id))\n", "            pass\n", HERE + "what_a_dead_worker_left_is_gone_before_it_is_declared"),
        Guard("only a worker with timely renewals judges others", "liveness/lifeline.py", "return 0.0 < self.quiet_until <= now < self._get(_AWAY)", "return now < self._get(_AWAY)", "unit/test_lifeline.py"),
        Guard("only a worker with timely renewals judges others", "liveness/lifeline.py", "return 0.0 < self.quiet_until <= now < self._get(_AWAY)", "return 0.0 < self.quiet_until <= now", "unit/test_lifeline.py"),
        Guard("a closed lifeline is not written", "liveness/lifeline.py", "            if not self._closed:\n                self._numbers[slot]", "            if True:\n                self._numbers[slot]", "unit/test_lifeline.py"),
        # ── permits and bells ──
        Guard("a redelivery alone declares no worker dead", "worker/permits.py", "declare = self._may_declare()", "declare = True", HERE + "a_worker_that_may_not_judge_others_takes_no_job_for_a_redelivered_permit"),
        Guard("a redelivery names its witness and its time", "worker/permits.py", "declare=declare, witness=self._worker_id, until=until)", "declare=declare)", HERE + "a_worker_that_may_not_judge_others_takes_no_job_for_a_redelivered_permit"),
        Guard("a permit of a job with a living owner claims nothing", "worker/permits.py", "            elif found is State.PROCESSING:\n                answer.owned.append(permit)\n", "", HERE + "a_worker_that_may_not_judge_others_takes_no_job_for_a_redelivered_permit"),
        Guard("a permit is acknowledged when its outcome is stored", "worker/permits.py", "self._running[Lease(each.id, each.attempt, self._worker_id)] = mine.pop()", "self._permits.settle([mine.pop()])", HERE + "a_permit_is_kept_until_the_outcome_of_its_job_is_stored"),
        Guard("a bell rings after the transaction has committed", "tasks/client.py", "            rings += rings_of(drafts, answers)\n", "            self.notifier.announce(rings_of(drafts, answers))\n", "unit/test_client.py"),
        # ── schedules ──
        Guard("a tick is one job, even if several processes fire it", "schedules/plan.py", "id=run_id(s.name, tick, cause + again)", "id=run_id(s.name, tick, cause + again + str(self.now))", "unit/test_ticks.py"),
        Guard("a schedule that skips runs nothing beside a run", "schedules/plan.py", "elif s.overlap == \"skip\":", "elif False:", "unit/test_ticks.py"),
        Guard("a schedule that queues keeps one tick", "schedules/plan.py", "elif s.overlap == \"queue\" and s.pending_tick is not None:", "elif False:", "unit/test_ticks.py"),
        Guard("a tick that is too late becomes no job", "schedules/plan.py", "if left is not None and left <= 0 and cause == \"tick\":", "if False:", "unit/test_ticks.py"),
        Guard("an idle schedule fires nothing", "schedules/plan.py", "        if self.schedule.idle or self.schedule.job is None:\n            return self\n        newest", "        if self.schedule.job is None:\n            return self\n        newest", "unit/test_ticks.py"),
        Guard("a schedule that this release can't read is left alone", "schedules/plan.py", "if self.schedule.unread or (", "if (", "unit/test_ticks.py"),
        Guard("a guard that runs is not run beside itself", "schedules/guard_plan.py", "    if plan.live:\n        held", "    if False:\n        held", "unit/test_ticks.py"),
        Guard("a guard's tick runs once", "schedules/guard_plan.py", "    if again and not force:", "    if False:", "unit/test_ticks.py"),
        Guard("an older release changes nothing", "schedules/timetable.py", "        if key != newest:\n", "        if False:\n", "unit/test_timetable.py"),
        Guard("a newer release's schedule is not overwritten", "schedules/timetable.py", "    if s.released_at and new.released_at and s.released_at > new.released_at:", "    if False:", HERE + "a_newer_release_that_was_faster_stands"),
        Guard("one app does not retire another's schedules", "schedules/timetable.py", "if s.source == source and s.name not in names]", "if s.name not in names]", "unit/test_timetable.py"),
        Guard("a writer that was not first reads again", "schedules/timetable.py", "                if not lands:\n", "                if False:\n", HERE + "a_declaration_that_was_not_first_is_read_and_made_again"),
        Guard("a schedule that can't be stored holds up no other", "schedules/timetable.py", "            if len(changes) > 1:\n", "            if False:\n", "conformance/test_schedules.py -k 'memory and refused'"),
        # ── programs around it that fork, and hold transactions ──
        Guard("a fork closes SQLite's files first", SQLITE, "                self._close_writer()\n                self._close_reader()\n                return True", "                return True", "programs/test_fork.py -k 'its_child_both_store and sqlite and exits'"),
        Guard("a child of a fork inside a transaction leaves the file alone", "core/forks.py", "        if not each.forget(paused=each in paused):\n            _unusable = True", "        each.forget(paused=each in paused)", "programs/test_fork.py -k inside_a_transaction"),
        Guard("a child does not end its parent's transaction", SQLITE, "            if self._file.mine:\n                with", "            if True:\n                with", "programs/test_fork.py -k inside_a_transaction"),
        Guard("a transaction that is too long is ended", SQLITE, "        _thread.start_new_thread(self._watch, ())\n", "", "unit/test_sqlite_file.py -k stays_open_too_long"),
        Guard("a thread does not wait for its own transaction", SQLITE, "        if _inside:\n            self._refuse_inside(\"a write\")\n", "", "unit/test_sqlite_file.py -k never_waits"),
        # ── other people's schedulers, guarded ──
        Guard("a guard that can't renew asks its code to stop", "guards/run.py", "        if self.holder.must_stop:\n", "        if False:\n", "unit/test_guard.py"),
        Guard("a guard that was declared dead has lost its lock", "guards/run.py", "        if not alive:\n", "        if False:\n", HERE + "a_guard_that_was_declared_dead_has_lost_its_lock"),
        Guard("a guard has lost its lock when another process ended its run", "guards/run.py", "            if held is None:\n", "            if False:\n", HERE + "a_guard_has_lost_its_lock_when_another_process_ended_its_run"),
        Guard("a guard that got no reply runs once", "guards/begin.py", "    if mine is not None:  # the reply", "    if False:  # the reply", "unit/test_guard.py"),
        Guard("a guard that was not first does not run", "guards/begin.py", "    if not store.change([began.change])[0]:\n        return None\n", "    store.change([began.change])\n", "unit/test_guard.py"),
        Guard("a paused guard does not run", "guards/begin.py", "    if plan.schedule.paused_at is not None and not force:\n", "    if False:\n", "unit/test_guard.py"),
        Guard("a guard takes over only when the owner's process is gone", "guards/begin.py", "        if provably_gone(worker):\n", "        if True:\n", "unit/test_guard.py"),
        Guard("a guard's outcome is sent while its lease lasts", "guards/run.py", "while not landed and not self.stop.dead and not self.holder.over:", "while not landed and not self.stop.dead:", HERE + "a_guard_gives_up_when_its_lease_ends_while_the_store_is_unavailable"),
        Guard("what a timed-out guard returned is no success", "guards/run.py", "            case \"timeout\":\n", "            case \"timeout\" if False:\n", "unit/test_guard.py"),
    ),
)  # fmt: skip
