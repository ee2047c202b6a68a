"""What can fail, on which store and notifier, what must happen, and which test shows it: `python -m chaos.matrix`.

S      what is promised holds: no job lost, none run by two owners, no former owner's write accepted
L      and all jobs end once the fault is over
D(x)   what was acknowledged within x may be gone, and nothing else: a declared loss
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Column = Literal["sqlite", "postgres", "redis", "nats", "redis doorbell"]
COLUMNS: tuple[Column, ...] = get_args(Column)
#: the runs of tests/chaos that play a column's faults
RUNS: Mapping[Column, tuple[str, ...]] = {
    "sqlite": ("sqlite",),
    "postgres": ("postgres", "postgres-poll"),
    "redis": ("redis", "redis-cluster"),
    "nats": ("sqlite-nats", "postgres-nats", "redis-nats"),
    "redis doorbell": ("redis",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A fault. `expected` by column, None where it can't happen; `faults`: how the runs play it, where they can;
    `tests`, by column or "all": which other tests show it.
    """

    fault: str
    expected: Mapping[Column, str | None]
    faults: tuple[str, ...] = ()
    tests: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def _all(what: str, **but: str | None) -> dict[Column, str | None]:
    named: dict[str, str | None] = {"redis doorbell" if name == "doorbell" else name: is_ for name, is_ in but.items()}
    return {column: named.get(column, what) for column in COLUMNS}


CRASH, UNIT, CONFORMANCE = "crash/test_", "unit/test_", "conformance/test_"
MACHINE = "chaos/test_machine.py::test_"
TICKS = (CRASH + "schedules.py", UNIT + "cron_oracle.py", UNIT + "every_tick_is_accounted.py")
BROKEN_DISK = MACHINE + "a_server_whose_disk_is_full_or_broken_refuses_and_loses_nothing"

MATRIX: tuple[Row, ...] = (
    Row(
        fault="a worker, a supervisor or a client is killed, at random and at each crash point",
        expected=_all("S, L"),
        faults=("kill worker", "kill supervisor", "kill client"),
        tests={
            "all": (CRASH + "killed_worker.py", "chaos/test_points.py"),
            "nats": (
                CRASH + "jetstream.py::test_without_any_scan_the_jobs_of_a_lost_host_run_again_by_redelivery_alone",
            ),
        },
    ),
    Row(
        fault="a worker or its supervisor is stopped for half a lease, one, three; then wakes",
        expected=_all("S, L"),
        faults=("pause worker", "pause supervisor", "ghost writes"),
        tests={
            "all": (CRASH + "ghosts.py", CRASH + "fences.py"),
            "nats": (
                UNIT + "nats_notifier.py::test_a_holder_that_dies_loses_it_after_ack_wait_and_one_that_lives_keeps_it",
            ),
        },
    ),
    Row(
        fault="a whole host is stopped, and wakes",
        expected=_all("S, L; old code may run for a second, its writes are refused"),
        faults=("pause host",),
        tests={"postgres": (CRASH + "two_hosts.py",)},
    ),
    Row(
        fault="packets go nowhere, for longer than a lease",
        expected=_all("S, L", sqlite=None),
        faults=("blackhole line", "refuse line", "blackhole queue"),
        tests={
            "postgres": (CRASH + "store_outage.py",),
            "nats": (CRASH + "jetstream.py::test_a_worker_that_reaches_nats_but_not_the_store_counts_as_dead",),
            "redis doorbell": (UNIT + "redis_notifier.py::test_a_server_that_is_cut_off_without_a_word_is_noticed",),
        },
    ),
    Row(
        fault="it is done, and the reply is lost",
        expected=_all("S, L"),
        faults=("lost reply line", "lost reply queue"),
        tests={
            "sqlite": (CRASH + "lost_replies.py", CONFORMANCE + "lost_replies.py"),
            "postgres": (CRASH + "lost_replies_postgres.py",),
            "redis": (CRASH + "lost_replies_redis.py",),
        },
    ),
    Row(
        fault="connections are reset or half closed, scripts forgotten; the line is slow or late",
        expected=_all("S, L", sqlite=None),
        faults=(
            *("reset line", "half-close line", "latency line", "throttle line", "disconnect server"),
            *("reset queue", "latency queue", "throttle queue", "forget scripts server"),
        ),
    ),
    Row(
        fault="the server is killed, stopped in a hurry, or frozen; and comes back",
        expected=_all("S, L", sqlite="S, L: every process opens the file anew", redis="always: S, L; everysec: D(2 s)"),
        faults=("kill server", "stop server", "freeze server", "kill node", "kill queue"),
        tests={
            "sqlite": (CRASH + "killed_worker.py",),
            "postgres": (UNIT + "postgres_server.py::test_restarts_in_the_middle_of_work_lose_nothing",),
            "redis": (CRASH + "redis.py::test_a_server_that_syncs_every_second_loses_that_and_touches_nothing_else",),
            "nats": (CRASH + "jetstream.py::test_a_nats_that_dies_and_comes_back_among_500_jobs",),
        },
    ),
    Row(
        fault="the power fails: what was not synced is gone",
        expected=_all("S, L", redis="always: S, L; everysec: D(2 s)", nats="S, L: all messages are gone"),
        faults=("wipe queue",),
        tests={
            "sqlite": (
                MACHINE + "a_power_cut_loses_nothing_of_what_sqlite_answered",
                MACHINE + "this_disk_forgets_what_was_not_synced",
            ),
            "postgres": (MACHINE + "a_power_cut_loses_nothing_of_what_a_server_answered",),
            "redis": (
                MACHINE + "a_power_cut_loses_nothing_of_what_a_server_answered",
                MACHINE + "a_power_cut_loses_no_more_than_is_declared",
            ),
            "redis doorbell": (
                UNIT + "redis_notifier.py::test_a_stream_that_was_lost_and_begins_with_lower_ids_is_heard",
            ),
        },
    ),
    Row(
        fault="an older copy takes over",
        expected=_all("D(what the copy lacks); former leases are fenced", nats=None, doorbell="S, L"),
        tests={
            "sqlite": (MACHINE + "a_restored_backup_of_sqlite_is_what_there_was_and_all_of_it_goes_on",),
            "postgres": (
                MACHINE + "a_postgres_that_fails_over_to_an_older_copy_loses_that_and_touches_nothing_else",
                MACHINE + "of_a_lost_timeline_no_outcome_is_taken_for_that_of_another_worker",
            ),
            "redis": (
                CRASH + "redis.py::test_a_server_that_syncs_every_second_loses_that_and_touches_nothing_else",
                UNIT + "redis_server.py::test_a_failover_within_the_cluster_is_followed",
            ),
            "redis doorbell": (
                UNIT + "redis_notifier.py::test_a_stream_that_was_lost_and_begins_with_lower_ids_is_heard",
            ),
        },
    ),
    Row(
        fault="what delivers is wiped",
        expected=_all("S, L", sqlite=None, postgres=None, redis=None),
        faults=("wipe queue",),
        tests={
            "nats": (CRASH + "jetstream.py::test_a_thousand_jobs_whose_messages_are_all_lost_run_all_the_same",),
            "redis doorbell": (
                UNIT + "redis_notifier.py::test_a_stream_that_was_lost_and_begins_with_lower_ids_is_heard",
            ),
        },
    ),
    Row(
        fault="what delivers lies: bits of its files flip, files are cut, the last acknowledged seconds are lost",
        expected=_all("", sqlite=None, postgres=None, redis=None, nats="S, L; jobs start late", doorbell=None),
        faults=("spoil queue", "rewind queue"),
        tests={
            "nats": (
                CRASH + "jetstream.py::test_jobs_of_a_jetstream_whose_files_are_damaged_start_late_and_none_is_lost",
                CRASH + "jetstream.py::test_jobs_of_a_jetstream_that_forgot_what_it_acknowledged_run_all_the_same",
            )
        },
    ),
    Row(
        fault="hints come twice, in another order, late, or for nothing",
        expected=_all("S"),
        faults=("false hints",),
        tests={
            "nats": (
                CRASH + "jetstream.py::test_messages_twice_reordered_late_and_garbled_are_one_accepted_outcome_each",
            ),
            "redis doorbell": (UNIT + "redis_notifier.py::test_what_others_put_into_the_stream_is_ignored",),
        },
    ),
    Row(
        fault="the disk, or the memory, is full; then there is room",
        expected=_all(
            "enqueues are refused in a sentence; S, L",
            postgres="refused; a full log ends the server; S, L",
            redis="always: it ends; everysec, maxmemory: refused; S, L",
            nats="messages are refused, workers poll; S, L",
        ),
        faults=("full disk", "full memory server"),
        tests={
            "sqlite": (CRASH + "faults.py::test_a_full_disk_loses_nothing",),
            "postgres": (BROKEN_DISK,),
            "redis": (BROKEN_DISK, CRASH + "redis.py::test_what_runs_when_the_server_is_full_ends"),
            "nats": (MACHINE + "a_full_nats_costs_latency_and_no_job",),
            "redis doorbell": (UNIT + "redis_notifier.py::test_a_ring_that_the_server_refused_is_sent_again",),
        },
    ),
    Row(
        fault="the disk can't sync (EIO)",
        expected=_all(
            "refused; S, L",
            postgres="the server ends; S, L once it is started",
            redis="always: it ends; everysec: refused until it is restarted; S, L",
            nats=None,
            doorbell=None,
        ),
        tests={
            "sqlite": (MACHINE + "a_disk_that_can_not_sync_refuses_and_loses_nothing",),
            "postgres": (BROKEN_DISK,),
            "redis": (BROKEN_DISK,),
        },
    ),
    Row(
        fault="clocks are set by an hour: a host's, the server's",
        expected=_all(
            "S; the host's: nothing at all", sqlite="S; leases count by the boot clock", nats=None, doorbell=None
        ),
        faults=("clock host",),
        tests={
            "sqlite": (
                CONFORMANCE + "rescue.py::test_setting_the_clock_ends_no_lease_or_its_former_owner_is_fenced",
                CRASH + "schedules.py::test_each_tick_is_one_job_though_the_hosts_clock_is_set_forth_and_back",
            ),
            "postgres": (MACHINE + "a_store_whose_clock_is_set_accepts_nothing_twice",),
            "redis": (MACHINE + "a_store_whose_clock_is_set_accepts_nothing_twice",),
        },
    ),
    Row(
        fault="clocks change for summer time, or are set back under a schedule",
        expected=_all("one job a tick", nats=None, doorbell=None),
        tests={"all": TICKS},
    ),
    Row(
        fault="the event loop is blocked, or the GIL held, for two leases",
        expected=_all("S, L; it is named"),
        tests={"all": (CRASH + "stalls.py",)},  # and scripts of every run
    ),
    Row(
        fault="somebody's transaction, old snapshot or slow script holds the store up",
        expected=_all("S, L", sqlite="S, L; the log grows, and is cut afterwards", nats=None, doorbell=None),
        faults=("long transaction",),
        tests={
            "sqlite": (MACHINE + "the_log_of_sqlite_grows_while_somebody_reads_an_old_state_and_shrinks",),
            "postgres": (MACHINE + "work_goes_on_though_somebody_holds_the_server_up", UNIT + "postgres_held_rows.py"),
            "redis": (MACHINE + "work_goes_on_though_somebody_holds_the_server_up",),
        },
    ),
    Row(
        fault="a rolling deploy; schemas a version apart; two releases of Tenure on one store",
        expected=_all("S, L; no attempt is charged"),
        faults=("deploy supervisor",),
        tests={
            "all": (CRASH + "drain.py", CRASH + "previous.py", "chaos/test_upgrade.py"),
            "sqlite": (UNIT + "sqlite_file.py::test_a_schema_one_version_ahead_is_accepted_two_are_not",),
            "postgres": (UNIT + "postgres_server.py::test_many_processes_migrate_an_empty_database_at_once",),
            "redis": (UNIT + "redis_server.py::test_one_version_of_the_schema_ahead_is_accepted_two_are_not",),
        },
    ),
    Row(
        fault="several supervisors fire schedules, and one of them stands still",
        expected=_all("one job a tick", nats=None, doorbell=None),
        faults=("pause supervisor", "kill supervisor"),
        tests={"all": (CRASH + "schedules.py", CONFORMANCE + "schedules.py")},
    ),
    Row(
        fault="a job takes its process down, every time",
        expected=_all("dead after max_crashes; its neighbours complete"),
        tests={"all": (CRASH + "poison.py",)},  # and scripts of every run
    ),
    Row(
        fault="a pooler in transaction mode: LISTEN hears nothing",
        expected=_all("", sqlite=None, postgres="it polls and says so; S, L", redis=None, nats=None, doorbell=None),
        tests={
            "postgres": (
                UNIT + "postgres_notifier.py::test_behind_a_pooler_it_says_so_and_polls_until_it_hears",
                MACHINE + "behind_a_real_pgbouncer_all_goes_on_and_it_says_that_it_polls",
            )
        },
    ),
)


def table() -> str:
    """For docs/evidence.md."""
    lines = [f"| what fails | {' | '.join(COLUMNS)} |", f"| --- |{' --- |' * len(COLUMNS)}"]
    rows = (f"| {row.fault} | {' | '.join(row.expected[column] or '–' for column in COLUMNS)} |" for row in MATRIX)
    return "\n".join([*lines, *rows])


if __name__ == "__main__":
    print(table())
