"""All peers on one PostgreSQL server with its default durability, each in a fresh database."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.servers import Nats, Postgres

from bench.drive import Order
from bench.postgres_peers import PEERS, WITH_NATS
from bench.report import Target, here, in_rounds, ratios, table

TITLE = "PostgreSQL"
FIGURES = ("drain", "cpu_us", "server_us", "bulk", "single", "together", "start_p50_ms", "start_p99_ms")
NATS = "tenure + JetStream"
TARGETS = (
    Target("drain ≥ 1.5 × pgqueuer's (goal: 2)", ("drain",), "tenure", "pgqueuer", 1.5),
    Target("worker and server CPU a job ≤ 0.7 × pgqueuer's", ("cpu_us", "server_us"), "tenure", "pgqueuer", 0.7, True),
    Target("bulk enqueue ≥ awa's", ("bulk",), "tenure", "awa", 1),
    Target("single awaited enqueue ≥ pgqueuer's", ("single",), "tenure", "pgqueuer", 1),
    Target("100 concurrent enqueues ≥ 5 × one by one", ("together",), "tenure", "tenure", 5, False, ("single",)),
    Target("start, median ≤ pgqueuer's", ("start_p50_ms",), "tenure", "pgqueuer", 1, True),
    Target("start, p99 ≤ 2 × pgqueuer's", ("start_p99_ms",), "tenure", "pgqueuer", 2, True),
    Target("with JetStream, drain ≥ taskiq-nats's", ("drain",), NATS, "taskiq-nats", 1),
)


def run(asked: Namespace) -> str:
    present, absent = entrants(asked.only)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in present}
    with servers(present) as bench:
        for number in range(asked.rounds):
            for name in present:
                with bench.contestant(name, asked.jobs, asked.slots) as order:
                    figures = ask(replace(order, action="measure"))
                rounds[name].append(figures)
                sys.stderr.write(f"round {number + 1}: {name}: {figures['drain']:,.0f} jobs/s\n")
    return "\n".join(
        [
            (
                f"{asked.jobs:,} no-op jobs, one worker, {asked.slots} slots, PostgreSQL {bench.version} on this "
                f"machine with its default durability; {in_rounds(asked.rounds)}, {here()}."
            ),
            "",
            table(rounds, absent, FIGURES),
            "",
            "Tenure's drain, as a ratio within each round:",
            "",
            *ratios(rounds, "tenure"),
            "",
            "The same with JetStream as its notifier:",
            "",
            *ratios(rounds, NATS),
            "",
            "Targets, as ratios within each round:",
            "",
            *(target.verdict(rounds) for target in TARGETS),
        ]
    )


def entrants(only: list[str] | None) -> tuple[list[str], dict[str, str]]:
    """The peers that take part, and why the others cannot."""
    names = [name for name in PEERS if not only or name in only]
    absent = {
        name: f"not here: needs Python {'.'.join(map(str, PEERS[name].python))}"
        for name in names
        if sys.version_info < PEERS[name].python
    }
    return [name for name in names if name not in absent], absent


@dataclass
class Bench:
    """The servers of one run."""

    postgres: Postgres
    nats: Nats | None
    version: str

    @contextmanager
    def contestant(self, name: str, jobs: int, slots: int) -> Generator[Order]:
        """One contestant's tables in a fresh database, which is dropped at the end."""
        url = self.postgres.create_database()
        order = Order("install", name, url, (self.postgres.pid,), slots, jobs)
        if name in WITH_NATS:
            assert self.nats
            self.nats.wipe()
            order = replace(order, nats=self.nats.url, servers=(self.postgres.pid, self.nats.pid))
        ask(order)
        yield order
        self.postgres.drop_database(url)


@contextmanager
def servers(names: list[str]) -> Generator[Bench]:
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres({"max_connections": 300}))
        nats = stack.enter_context(Nats()) if WITH_NATS & set(names) else None
        [(version,)] = postgres.execute("SELECT current_setting('server_version')")
        yield Bench(postgres, nats, version)


def ask(order: Order) -> Any:
    """Run an order in its process and return the answer."""
    command, environment = order.command()
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"{order.name} failed:\n{answer.stderr}")
    return json.loads(answer.stdout.splitlines()[-1])
