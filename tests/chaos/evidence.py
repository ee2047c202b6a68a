"""What runs have shown, in lines, in files, and in docs/evidence.md: `python -m chaos.evidence [FOLDER [DOCUMENT]]`.

All figures in the document are computed from the results that are kept next to the histories; none is typed in.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from . import history, matrix, profiles
from .bounds import DUTIES
from .checker import Violation
from .run import Result
from .stage import STORES

FIGURES = ("jobs", "attempts", "kills", "refusals", "rescues", "redeliveries")
TOLD = 10  #: violations of a kind that a summary lists


def summary(result: Result) -> str:
    """A run in one line, and below it what is wrong."""
    verdict = result.verdict
    figures = ", ".join(f"{getattr(verdict, name)} {name}" for name in FIGURES)
    wrong = [
        *_some(verdict.violations),
        *(f"it proves nothing: {each}" for each in result.toothless),
        *result.oddities,
    ]
    load = f", {result.load} × {result.scale:g}" if result.load else ""
    also = ", upgraded" * result.upgraded + f", {result.values}" * bool(result.values)
    line = (
        f"{result.backend}{load}{also}, seed {result.seed}, {result.seconds:.0f} s: "
        f"{len(result.faults)} faults, {figures}; drained in {result.drained:.1f} s; "
        f"{len(verdict.violations)} violations"
    )
    return "\n".join([line, f"    {_lateness(result)}", *(f"    {each}" for each in wrong)])


def _some(violations: Sequence[Violation]) -> Iterator[str]:
    """The first violations of each kind: the folder of the run has all."""
    told = Counter[str]()
    for each in violations:
        told[each.invariant] += 1
        if told[each.invariant] <= TOLD:
            yield f"{each.invariant}: {each.sentence}"
    yield from (f"{name}: and {times - TOLD} more" for name, times in told.items() if times > TOLD)


def _lateness(result: Result) -> str:
    machine = result.verdict.machine
    if machine is None:
        return "no load: it says nothing about how late anything is under load"
    duties = (
        f"{duty} {lags.half:.2f}/{lags.most:.2f} s of {lags.count}" + (f" ({lags.broken} too late)" * bool(lags.broken))
        for duty, lags in result.verdict.lags.items()
    )
    stalls = (
        f"stalls {machine.stall_half:.2f}/{machine.stall:.2f} s, {machine.slow_half:.1f}/{machine.slow:.1f} × slower"
    )
    store = f"an unrelated write {machine.store_half:.2f}/{machine.store:.2f} s"
    return f"median/most late: {', '.join(duties)}; the machine: load {machine.load:.1f}, {stalls}, {store}"


def keep(result: Result, path: Path) -> None:
    verdict = result.verdict
    shares = _shares(history.read(result.folder / "history.jsonl"))
    path.write_text(
        json.dumps(
            {
                "backend": result.backend,
                "load": result.load,
                "upgraded": result.upgraded,
                "values": result.values,
                "scale": result.scale,
                "lags": {duty: asdict(lags) for duty, lags in verdict.lags.items()},
                "machine": asdict(verdict.machine) if verdict.machine else None,
                "seed": result.seed,
                "asked": result.asked,
                "seconds": result.seconds,
                "drained": result.drained,
                "passed": result.passed,
                "violations": [list(each) for each in verdict.violations],
                "wrong": [*result.toothless, *result.oddities],
                "effects": {str(times): jobs for times, jobs in verdict.effects.items()},
                **{name: getattr(verdict, name) for name in FIGURES},
                "faults": {
                    name: {"times": times, **shares[name], "recoveries": verdict.recoveries.get(name, ())}
                    for name, times in verdict.faults.items()
                },
            },
            indent=1,
        ),
        encoding="utf-8",
    )


def _shares(events: Iterable[history.Event]) -> defaultdict[str, Counter[str]]:
    """By fault: the attempts begun, and the writes refused to former owners, until the next fault began."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    now = ""
    for event in events:
        if event.op == "fault" and event.phase == "invoke":
            now = event.data["kind"]
        elif event.op == "calm":
            now = ""
        if now and event.op == "begin":
            found[now]["begun"] += 1
        elif now and event.phase == "fail" and event.op in ("checkpoint", "once", "hand_in", "ghost"):
            found[now]["refused"] += 1
    return found


# ── The document ────────────────────────────────────────────────────────────────────────────────────────────────


def write(document: Path, folder: Path) -> None:
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))]
    if not results:
        raise SystemExit(f"no run is kept in {folder}: make chaos STORE=sqlite SECONDS=60")
    by_store: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in results:
        values = each.get("values", "")
        also = ", upgraded" * each.get("upgraded", False) + f", {values}" * bool(values)
        by_store[each["backend"] + also].append(each)
    loaded = [each for each in results if each.get("load")]
    before = _earlier(document.read_text(encoding="utf-8") if document.exists() else "", by_store)
    sections = [_HEAD.format(today=datetime.now(UTC).date(), machine=_machine())]
    sections.append(_totals(by_store, [each.row for each in before]))
    sections.append(_under_load(loaded, [row for each in before for row in each.under_load]))
    sections += [_faults(store, runs) for store, runs in by_store.items()]
    sections += [each.section for each in before]
    sections.append(_MATRIX.format(table=matrix.table()))
    guards = folder / "guards.json"
    if guards.exists():
        sections.append(_guards(json.loads(guards.read_text())))
    elif document.exists():  # the guards take hours and are run less often: keep what they last showed, with its date
        _, heading, kept = document.read_text(encoding="utf-8").partition(_GUARDS)
        sections += [f"{heading}{kept}".rstrip()] if heading else []
    document.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


class Earlier(NamedTuple):
    """What the last run of a store or a notifier has shown, with its date, if it was not run this time."""

    row: str
    section: str
    under_load: list[str]  #: rows


def _earlier(document: str, names: Iterable[str]) -> list[Earlier]:
    found: list[Earlier] = []
    date = re.search(r"wrote this, on (\S+),", document)
    loaded = re.search(r"^## Under load\n(.*?)(?=^## |\Z)", document, re.MULTILINE | re.DOTALL)
    for section in re.findall(r"^## .*?(?=^## |\Z)", document, re.MULTILINE | re.DOTALL):
        heading = section.partition("\n")[0].removeprefix("## ")
        name, _, dated = heading.partition(" (")
        row = re.search(rf"^\| {re.escape(heading)} \|.*$", document, re.MULTILINE)
        if name in STORES and name not in names and date and row:
            now = f"{name} ({dated or f'{date[1]})'}"
            mine = rf"^\| [^|]+ \| {re.escape(heading)} \|.*$"
            loads = re.findall(mine, loaded[1], re.MULTILINE) if loaded else []
            rows = [load.replace(f"| {heading} |", f"| {now} |", 1) for load in loads]
            found.append(Earlier(row[0].replace(heading, now, 1), section.rstrip().replace(heading, now, 1), rows))
    return found


_HEAD = """# Faults survived

`make chaos` wrote this, on {today}, {machine}.

Real supervisors, workers, clients and servers; faults drawn from a seed, one after the other; handlers that write down
what they did, clients that write down what they were told. A checker that never asks the engine then looks for
twenty-one kinds of broken promises, and in runs with a load for four time bounds that are not kept
([history.py](../tests/chaos/history.py), [checker.py](../tests/chaos/checker.py)). [delivery.md](delivery.md) has what
is promised. A seed draws the same faults as long as the kinds of faults stay the same."""


_GUARDS = "## Guards removed"
_MATRIX = """## The matrix

S: no job lost, none run by two owners, no former owner's write accepted. L: all jobs end once the fault is over. D(x):
what was acknowledged within x may be gone, and nothing else. –: it can't happen there. For each cell,
[matrix.py](../tests/chaos/matrix.py) names the run or test that shows it; a test makes sure that none lacks one.

{table}

A notifier may lose messages, because the store owns the jobs. JetStream does: in NATS 2.12.1,
[Jepsen found](https://jepsen.io/analyses/nats-2.12.1), it loses acknowledged messages if files are damaged on a
minority of its nodes, or if all nodes lose power at once: it syncs its files every two minutes, and acknowledges
before. In one such run 131,418 of 930,005 acknowledged messages were lost."""


def _machine() -> str:
    return f"{os.cpu_count()} cores, Python {platform.python_version()}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join([*_head(head), *map(_row, rows)])


def _head(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", f"| --- |{' ---: |' * (len(names) - 1)}"]


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _totals(by_store: Mapping[str, Sequence[Mapping[str, Any]]], earlier: Sequence[str]) -> str:
    rows = [
        (
            store,
            len(runs),
            f"{sum(run['seconds'] for run in runs) / 60:.1f}",
            sum(fault["times"] for run in runs for fault in run["faults"].values()),
            *(f"{sum(run[name] for run in runs):,}" for name in FIGURES),
            sum(len(run["violations"]) for run in runs),
            f"{max(run['drained'] for run in runs):.1f} s",
        )
        for store, runs in by_store.items()
    ]
    head = ("store", "runs", "minutes", "faults", *FIGURES, "violations", "longest drain")
    told = [
        f"- {run['backend']}, seed {run['seed']}: {each}"
        for runs in by_store.values()
        for run in runs
        for each in (*_some([Violation(*pair) for pair in run["violations"]]), *run["wrong"])
    ]
    below = "\n\nWhat was wrong:\n\n" + "\n".join(told) if told else ""
    dated = "\n\nRows and sections with a date are from a run on that day, not from this one." if earlier else ""
    table = "\n".join([_table(head, rows), *earlier])
    return f"## All runs\n\n{table}{dated}{below}"


def _under_load(runs: Sequence[Mapping[str, Any]], earlier: Sequence[str]) -> str:
    if not runs and not earlier:
        return "## Under load\n\nNo run here had a load: they say nothing about how late anything is under load."
    by_load: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        by_load[f"{run['load']} × {run['scale']:g}", run["backend"]].append(run)
    rows = [
        (
            load,
            store,
            f"{sum(run['seconds'] for run in mine) / 60:.1f}",
            *(_worst(mine, duty) for duty in DUTIES),
            f"{max(run['machine']['load'] for run in mine if run['machine']):.1f}",
            f"{max(run['machine']['stall'] for run in mine if run['machine']):.2f} s",
            f"{max(run['machine']['slow'] for run in mine if run['machine']):.1f} ×",
            f"{max(run['machine']['store'] for run in mine if run['machine']):.2f} s",
        )
        for (load, store), mine in by_load.items()
    ]
    head = ("load", "store", "minutes", *DUTIES, "load average", "stall", "slower", "store")
    table = "\n".join([*_head(head), *sorted([*map(_row, rows), *earlier])])
    loads = "\n".join(f"- {each.name}: {each.about}" for each in profiles.PROFILES)
    means = "\n".join(f"- {duty}: {about}" for duty, about in DUTIES.items())
    return (
        f"{_LOAD_HEAD}\n\n{loads}\n\nThe most that each duty was late, and in brackets how often it was later than "
        f"promised:\n\n{means}\n\n{table}"
    )


_LOAD_HEAD = """## Under load

In addition to the faults, these runs had a load, and a lane of its own, with slots that are always free and on lines
that no fault meets: its jobs, enqueues and ticks show how late the load makes others. Lateness counts only while the
store answers: not during a fault that keeps it from answering, nor for a lease after it, nor while a handler that holds
the GIL has the lock of SQLite's file, as [delivery.md](delivery.md#sqlite) says. A due job may start 1 s late, a tick
fire 2 s late, a rescue come 2 s after a lease and a scan, an enqueue take 1 s or three times what the store itself
takes. The machine's own lateness is allowed on top, because these runs share it: "stall" is the longest that a process
overslept a sleep of 10 ms, "slower" how many times its processor time a computation took, "store" the longest write
that has nothing to do with Tenure. Nothing is promised about an answer or a new worker. Runs without a load say nothing
about lateness under load."""


def _worst(runs: Sequence[Mapping[str, Any]], duty: str) -> str:
    lags = [run["lags"][duty] for run in runs if duty in run["lags"]]
    if not lags:
        return "–"
    broken = sum(each["broken"] for each in lags)
    return f"{max(each['most'] for each in lags):.2f} s" + (f" (**{broken}**)" if broken else "")


def _faults(store: str, runs: Sequence[Mapping[str, Any]]) -> str:
    found: defaultdict[str, dict[str, Any]] = defaultdict(lambda: {"times": 0, "begun": 0, "refused": 0, "again": []})
    for run in runs:
        for name, fault in run["faults"].items():
            mine = found[name]
            for figure in ("times", "begun", "refused"):
                mine[figure] += fault.get(figure, 0)
            mine["again"] += fault["recoveries"]
    broken = "see above" if any(run["violations"] for run in runs) else 0
    rows = [
        (
            *(name, fault["times"], f"{fault['begun']:,}", f"{fault['refused']:,}", len(fault["again"]), broken),
            *_spread(fault["again"]),
        )
        for name, fault in sorted(found.items())
    ]
    head = ("fault", "times", "attempts begun", "writes refused", "begun again", "violations", "p50", "p99", "most")
    seeds = ", ".join(str(run["seed"]) for run in runs)
    effects = Counter[int]()
    for run in runs:
        effects.update({int(times): jobs for times, jobs in run["effects"].items()})
    load = f" LOAD='{runs[0]['load']}' SCALE={runs[0]['scale']:g}" if runs[0].get("load") else ""
    load += " UPGRADE=yes" * runs[0].get("upgraded", False)
    values = runs[0].get("values", "")
    load += f" VALUES={values}" * bool(values)
    again = f"make chaos STORE={runs[0]['backend']} SECONDS={runs[0]['asked']:.0f} SEED={runs[0]['seed']}{load}"
    told = ", ".join(f"{times} × {jobs:,} jobs" for times, jobs in sorted(effects.items()))
    return (
        f"## {store}\n\nSeeds {seeds}. One of them again: `{again}`.\n\n"
        f"Effects of a job: {told}. The times are from a fault until a job that it interrupted began again.\n\n"
        f"{_table(head, rows)}"
    )


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    if not values:
        return ("–", "–", "–")
    ordered = sorted(values)
    places = (len(ordered) // 2, min(len(ordered) - 1, int(len(ordered) * 0.99)), len(ordered) - 1)
    p50, p99, most = (f"{ordered[place]:.2f} s" for place in places)
    return p50, p99, most


def _guards(rows: Sequence[Mapping[str, Any]]) -> str:
    red = sum(bool(row["caught_by"]) for row in rows)
    table = _table(
        ("guard removed", "store", "caught by"),
        [(row["guard"], row["store"], f"`{row['caught_by']}`" if row["caught_by"] else "**nothing**") for row in rows],
    )
    return (
        f"{_GUARDS}\n\nEach guard is deleted from a copy of the code, and a test must fail: on "
        f"{datetime.now(UTC).date()}, that was so for {red} of {len(rows)} (`python -m tests.guards`).\n\n{table}"
    )


if __name__ == "__main__":
    write(Path((sys.argv[2:] or ["docs/evidence.md"])[0]), Path((sys.argv[1:] or [".chaos"])[0]))
