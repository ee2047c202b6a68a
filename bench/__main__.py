"""`make bench`: all peers in turn, several rounds, medians, one table. Compare ratios: machine speed drifts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import dashboard, faults, growth, limits, postgres, redis, redis_growth, scale, schedules, sqlite
from bench.report import store_section

PARTS = {"sqlite": sqlite, "postgres": postgres, "redis": redis}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres", "redis"), default="sqlite")
    parser.add_argument("--growth", action="store_true", help="with many other jobs in the store (postgres, redis)")
    parser.add_argument("--schedules", action="store_true", help="ten thousand schedules, on all stores (or --only)")
    parser.add_argument("--dashboard", action="store_true", help="pages and the drain, with a million jobs stored")
    parser.add_argument("--limits", action="store_true", help="jobs with keys against plain ones, and DBOS's limit")
    parser.add_argument("--faults", action="store_true", help="throughput under kills, and after a restart")
    parser.add_argument("--scale", action="store_true", help="many or idle workers, round trips, a soak: docs/scale.md")
    parser.add_argument("--parts", nargs="+", choices=tuple(scale.PARTS), help="scale: these parts only")
    parser.add_argument("--stores", nargs="+", choices=("postgres", "redis"), default=["postgres", "redis"])
    parser.add_argument("--workers", nargs="+", type=int, default=scale.WORKERS, help="scale: how many drain")
    parser.add_argument("--idle", nargs="+", type=int, default=scale.IDLE, help="scale: how many are idle")
    parser.add_argument("--trips", nargs="+", type=float, default=scale.TRIPS, help="scale: round trips, in seconds")
    parser.add_argument("--seconds", type=float, default=20.0, help="scale: for each number of idle workers")
    parser.add_argument("--soak", type=int, default=600, help="scale: seconds, at least six")
    parser.add_argument("--pace", type=int, default=1000, help="scale: jobs a second of the soak")
    parser.add_argument("--quick", action="store_true", help="faults: a run of seconds, to see that it works")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, help="of a drain (20,000; growth 10,000; scale 150,000), or in the store (1,000,000)"
    )
    parser.add_argument("--slots", type=int, default=500, help="slots of a worker and limit of a batch, for all")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these contestants only")
    parser.add_argument("--others", type=int, default=1_000_000, help="growth: other jobs, queued or delayed")
    parser.add_argument("--ended", type=int, default=5_000_000, help="growth: ended jobs that are kept")
    parser.add_argument("--churn", type=int, default=200_000, help="growth: jobs drained while an old snapshot is open")
    parser.add_argument("--write", type=Path, help="write the section to this file too; others in it are kept")
    asked = parser.parse_args()
    if asked.growth and asked.store == "sqlite":
        parser.error("--growth is measured with --store postgres and --store redis")
    if asked.scale:
        asked.jobs = asked.jobs or 150_000
        sys.stdout.write(scale.run(asked) + "\n")
        return
    asked.jobs = asked.jobs or (1_000_000 if asked.dashboard else 10_000 if asked.growth else 20_000)
    parts = {"postgres": growth, "redis": redis_growth} if asked.growth else PARTS
    others = (
        (asked.dashboard, dashboard),
        (asked.schedules, schedules),
        (asked.faults, faults),
        (asked.limits, limits),
    )
    part = next((part for wanted, part in others if wanted), parts[asked.store])
    text = part.run(asked)
    sys.stdout.write(text + "\n")
    if asked.write:
        kind = "Dashboard" if asked.dashboard else "Limits" if asked.limits else ""
        title = f"{kind} on {PARTS[asked.store].TITLE}" if kind else part.TITLE
        store_section(asked.write, title, text)


if __name__ == "__main__":
    main()
