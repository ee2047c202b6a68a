"""Charts of a trend, for the macro `chart`: how many jobs ended, and how long they waited."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

from tenure.core.lifecycle import State
from tenure.core.spread import quantile
from tenure.operations.trends import Figures, RollUp, Span, Trend, total
from tenure.web.words import duration, number

WIDTH, HEIGHT = 720, 150
_STATES = (State.COMPLETED, State.DEAD, State.CANCELLED)
_SHARES = (("p50", 0.5), ("p95", 0.95))
#: In words, and the labels below a chart, evenly spaced.
SPANS: dict[Span, tuple[str, Sequence[str]]] = {
    "15m": ("the last 15 minutes", ("15 min ago", "10", "5", "now")),
    "6h": ("the last six hours", ("6 h ago", "4", "2", "now")),
    "7d": ("the last seven days", ("7 days ago", "now")),
}
_UNITS = (("second", "s", 1), ("minute", "min", 60), ("hour", "h", 3600))
_APART = 1 / 15  #: of a chart: samples that are further apart are not connected
_ALONE = WIDTH * _APART / 5  #: the length of a sample that is connected to none


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `kind` selects its colour and dashes, `area` is the filled path below it."""

    name: str
    kind: str
    now: str
    path: str
    area: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """`ticks`: evenly spaced from the top; `below`: from the left; `rows`: the data, newest first."""

    title: str
    unit: str
    says: str
    lines: Sequence[Line]
    ticks: Sequence[str]
    below: Sequence[str]
    unknown: Sequence[tuple[float, float]]
    rows: Sequence[tuple[datetime, Sequence[str]]]
    width: int = WIDTH
    height: int = HEIGHT


def charts(trend: Trend) -> tuple[Chart, Chart]:
    return throughput(trend), latency(trend)


def throughput(trend: Trend) -> Chart:
    """Jobs ended per second; per minute or hour, if they are few."""
    whole = trend.points[:-1]  # the last one is still in progress
    totals = [(each, each.total) for each in trend.points]
    words, below = SPANS[trend.span]
    series = {state: [_rate_of(each, figures, state) for each, figures in totals[:-1]] for state in _STATES}
    most = max((value for values in series.values() for value in values if value), default=1.0)
    unit, short, scale = next((each for each in _UNITS if most * each[2] >= 1), _UNITS[-1])
    top = _nice(most * scale) / scale
    ended = Counter({state: round(sum(getattr(figures, state) for _, figures in totals)) for state in _STATES})

    def place(value: float) -> float:
        return value / top

    shown = {state: values if state is State.COMPLETED else _seldom(values) for state, values in series.items()}
    now = {state: next((value for value in reversed(series[state]) if value is not None), 0.0) for state in _STATES}
    lines = [
        _line(state, state, f"{_rate(now[state] * scale)}/{short}", _runs(shown[state], place)) for state in _STATES
    ]
    lines[0] = replace(lines[0], area=_area(shown[State.COMPLETED], place))
    counts = ", ".join(f"{ended[state]:,} {state}" for state in _STATES)
    fast = max((value for value in series[State.COMPLETED] if value), default=0.0) * scale
    return Chart(
        "Throughput",
        f"jobs per {unit}",
        f"Jobs that ended in {words}: {counts}; at most {number(fast)} completed per {unit}",
        lines,
        [_rate(top * scale), _rate(top * scale / 2), "0"],
        below,
        _unknown(whole),
        [
            (at, [_rate(getattr(figures, state) * scale / seconds) for state in _STATES])
            for at, seconds, figures in _by_the_minute(whole)
        ],
    )


def latency(trend: Trend) -> Chart:
    """How long completed jobs waited from due to started, on a logarithmic scale."""
    whole = trend.points[:-1]
    words, below = SPANS[trend.span]
    totals = [each.total for each in trend.points]
    series = {name: [quantile(each.waits, share) for each in totals[:-1]] for name, share in _SHARES}
    seen = [max(value, 0.001) for values in series.values() for value in values if value is not None]
    low = math.floor(math.log10(min(seen, default=0.001)))
    high = max(math.ceil(math.log10(max(seen, default=1.0))), low + 1)
    every = total(totals).waits
    typical = " and ".join(f"{duration(quantile(every, share))} at {name}" for name, share in _SHARES)

    def place(value: float) -> float:
        return (math.log10(max(value, 10.0**low)) - low) / (high - low)

    last = {name: next((value for value in reversed(series[name]) if value is not None), None) for name, _ in _SHARES}
    return Chart(
        "Delay",
        "from due to started",
        f"How long jobs waited in {words}: {typical}" if every else f"No job completed in {words}",
        [_line(name, name, duration(last[name]), _near(series[name], whole, place)) for name, _ in _SHARES],
        [f"{10**power:,}s" if power >= 0 else duration(10.0**power) for power in range(high, low - 1, -1)],
        below,
        _unknown(whole),
        [
            (at, [duration(quantile(figures.waits, share)) for _, share in _SHARES])
            for at, _, figures in _by_the_minute(whole)
        ],
    )


Runs = list[list[tuple[float, float]]]


def _line(name: str, kind: str, now: str, runs: Runs) -> Line:
    paths = [" L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in runs]
    alone = f" h{_ALONE:.1f}"
    return Line(name, kind, now, " ".join(f"M{path}" if " L" in path else f"M{path}{alone}" for path in paths))


def _rate_of(each: RollUp, figures: Figures, state: State) -> float | None:
    return getattr(figures, state) / each.seconds if each.known else None


def _seldom(values: Sequence[float | None]) -> list[float | None]:
    """Without the stretches of zeros, so that a line which is mostly 0 is visible where it is not."""
    around = zip([0.0, *values[:-1]], values, [*values[1:], 0.0], strict=True)
    return [here if any(three) else None for three in around for here in three[1:2]]


def _area(values: Sequence[float | None], place: Callable[[float], float]) -> str:
    return " ".join(
        f"M{run[0][0]:.1f} {HEIGHT} L{' L'.join(f'{x:.1f} {y:.1f}' for x, y in run)} L{run[-1][0]:.1f} {HEIGHT} Z"
        for run in _runs(values, place)
    )


def _points(values: Sequence[float | None], place: Callable[[float], float]) -> list[tuple[float, float] | None]:
    step = WIDTH / max(len(values) - 1, 1)
    return [None if value is None else (at * step, HEIGHT * (1 - place(value))) for at, value in enumerate(values)]


def _runs(values: Sequence[float | None], place: Callable[[float], float]) -> Runs:
    """The points of a line, in segments: unknown values are gaps."""
    groups = groupby(_points(values, place), key=lambda point: point is not None)
    return [[point for point in group if point is not None] for known, group in groups if known]


def _near(values: Sequence[float | None], points: Sequence[RollUp], place: Callable[[float], float]) -> Runs:
    """The samples, in segments: a short time without any is bridged, an unknown time never."""
    runs: Runs = []
    apart, last = max(len(points) * _APART, 1), -len(points)
    for at, point in enumerate(_points(values, place)):
        last = last if points[at].known else -len(points)
        if point is not None:
            if at - last > apart:
                runs.append([])
            runs[-1].append(point)
            last = at
    return [run if len(run) > 1 else [(min(run[0][0], WIDTH - _ALONE), run[0][1])] for run in runs]


def _unknown(points: Sequence[RollUp]) -> list[tuple[float, float]]:
    """Ranges that were not recorded, or not read yet: from, to."""
    step = WIDTH / max(len(points) - 1, 1)
    found = list[tuple[float, float]]()
    for known, group in groupby(enumerate(points), key=lambda each: each[1].known):
        if not known:
            places = [at for at, _ in group]
            found.append((round(max(places[0] - 1, 0) * step, 1), round(min((places[-1] + 1) * step, WIDTH), 1)))
    return found


def _by_the_minute(points: Sequence[RollUp]) -> list[tuple[datetime, float, Figures]]:
    """Newest first, without what is not known: the time, the seconds, and what ended."""
    found = [(minute, [each for each in some if each.known]) for minute, some in groupby(points, lambda p: p.at // 60)]
    return [
        (
            datetime.fromtimestamp(minute * 60, UTC),
            sum(each.seconds for each in some),
            total(each.total for each in some),
        )
        for minute, some in reversed(found)
        if some
    ]


def _rate(value: float) -> str:
    return f"{value:.2g}" if 0 < value < 1 else number(value)


def _nice(value: float) -> float:
    """The next 1, 2, 4 or 10 times a power of ten: half of it is a round number too."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 10) if step * power >= value)
