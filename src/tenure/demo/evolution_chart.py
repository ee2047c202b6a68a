"""A picture of a history, as SVG: lines by language stacked over time, and commits per period below them.

No dependency and no script. Colours follow the reader's light or dark preference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from xml.sax.saxutils import escape

from tenure.demo.git_history import OTHER

_SVG = "http://www.w3.org/2000/svg"
_WIDTH, _HEIGHT = 1000, 620
_LEFT, _RIGHT = 72, 770
_TOP, _BASELINE = 118, 430  #: of the stacked areas
_BARS_TOP, _BARS_BASELINE = 486, 566
_LEGEND, _EDGE = 802, _WIDTH - 32
_BANDS = 8

_LIGHT = ("#2a78d6", "#eb6834", "#1baf7a", "#eda100", "#e87ba4", "#4a3aa7", "#7fae2a", "#a3a29c")
_DARK = ("#3987e5", "#d95926", "#199e70", "#c98500", "#d55181", "#9085e9", "#6b9422", "#75746f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The data: at each of `times` (Unix seconds, rising, at least one) each series has a count of lines.

    `days` are commits by day, counted from 1970; `authors` are commits by author, the first few are drawn.
    """

    title: str
    subtitle: str
    times: Sequence[int]
    series: Mapping[str, Sequence[int]]
    days: Mapping[int, int]
    authors: Mapping[str, int]


def draw(picture: Picture) -> str:
    """The picture as a complete SVG document."""
    start = picture.times[0]
    end = max(picture.times[-1], start + 3600)  # a single commit is drawn as the start of a line, not as a point

    def across(at: float) -> float:
        return _LEFT + (min(max(at, start), end) - start) / (end - start) * (_RIGHT - _LEFT)

    bands = _bands(picture.series)
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="{_SVG}" class="evolution" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" {size}>',
        f"<title>{_text(picture.title)}</title>",
        f"<desc>{_text(picture.subtitle)}</desc>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" {size} rx="14"/>',
        f'<text class="title" x="{_LEFT - 40}" y="46">{_text(_short(picture.title, 64))}</text>',
        f'<text class="soft" x="{_LEFT - 40}" y="70">{_text(_short(picture.subtitle, 150))}</text>',
        *_calendar(start, end, across),
        *_areas(bands, picture.times, across, across(end)),
        *_bars(picture.days, start, end, across),
        *_legend(bands),
        *_authors(picture.authors),
        "</svg>\n",
    ]
    return "\n".join(parts)


class _Band(NamedTuple):
    name: str
    counts: list[int]
    colour: int


def _bands(series: Mapping[str, Sequence[int]]) -> list[_Band]:
    """The languages with the highest peaks, largest first; all others share the last band."""
    peaks = {name: max(counts, default=0) for name, counts in series.items()}
    named = sorted((name for name in peaks if name != OTHER and peaks[name] > 0), key=lambda name: (-peaks[name], name))
    shown = named[: _BANDS - 1]
    bands = [_Band(name, [max(count, 0) for count in series[name]], i) for i, name in enumerate(shown)]
    rest = [series[name] for name in (*named[_BANDS - 1 :], OTHER) if peaks.get(name, 0) > 0]
    if rest:
        together = [sum(max(count, 0) for count in counts) for counts in zip(*rest, strict=True)]
        bands.append(_Band(OTHER, together, _BANDS - 1))
    return bands


# ── The parts ─────────────────────────────────────────────────────────────────────────────────────────────


def _areas(
    bands: Sequence[_Band], times: Sequence[int], across: Callable[[float], float], right: float
) -> Iterator[str]:
    highest = max((sum(column) for column in zip(*(band.counts for band in bands), strict=True)), default=0)
    step = _nice(max(highest, 4) / 4)
    top = step * max(math.ceil(highest / step), 1)

    def up(count: float) -> float:
        return _BASELINE - count / top * (_BASELINE - _TOP)

    yield f'<text class="axis" x="{_LEFT - 40}" y="{_TOP - 14}">Lines of code</text>'
    for tick in range(round(top / step) + 1):
        y = up(tick * step)
        yield f'<path class="{"base" if tick == 0 else "grid"}" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
        yield f'<text class="tick end" x="{_LEFT - 8}" y="{y + 4:.1f}">{_brief(tick * step)}</text>'

    xs = [*(across(at) for at in times), right]
    below = [0] * len(times)
    for band in bands:
        above = [low + count for low, count in zip(below, band.counts, strict=True)]
        upper = [f"{x:.1f} {up(y):.1f}" for x, y in zip(xs, [*above, above[-1]], strict=True)]
        lower = [f"{x:.1f} {up(y):.1f}" for x, y in zip(xs, [*below, below[-1]], strict=True)]
        outline = "L".join([*upper, *reversed(lower)])
        yield f'<path class="area c{band.colour}" d="M{outline}Z"><title>{_text(_sentence(band))}</title></path>'
        below = above


def _bars(days: Mapping[int, int], start: int, end: int, across: Callable[[float], float]) -> Iterator[str]:
    period, counts = _periods({day: n for day, n in days.items() if start // 86_400 <= day <= end // 86_400})
    yield f'<text class="axis" x="{_LEFT - 40}" y="{_BARS_TOP - 14}">Commits per {period.name}</text>'
    yield f'<path class="base" d="M{_LEFT} {_BARS_BASELINE}H{_RIGHT}"/>'
    highest = max(counts.values(), default=0)
    if highest:
        yield f'<path class="grid" d="M{_LEFT} {_BARS_TOP}H{_RIGHT}"/>'
        yield f'<text class="tick end" x="{_LEFT - 8}" y="{_BARS_TOP + 4}">{_brief(highest)}</text>'
    for number, count in sorted(counts.items()):
        left, right = across(period.start(number)), across(period.start(number + 1))
        width = min(max((right - left) * 0.82, 1.0), 26.0)
        height = max(count / highest * (_BARS_BASELINE - _BARS_TOP), 1.0)
        x, y = (left + right - width) / 2, _BARS_BASELINE - height
        label = f"{period.label(period.start(number))}: {_plural(count, 'commit')}"
        yield (
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{min(width / 4, 2):.1f}"><title>{_text(label)}</title></rect>'
        )


def _legend(bands: Sequence[_Band]) -> Iterator[str]:
    """The legend in the order of the stack, top first, so that rows line up with the areas."""
    yield f'<text class="axis" x="{_LEGEND}" y="{_TOP - 14}">Language</text>'
    yield f'<text class="axis end" x="{_EDGE}" y="{_TOP - 14}">lines</text>'
    for row, band in enumerate(reversed(bands)):
        y = _TOP + 10 + row * 27
        yield f'<rect class="c{band.colour}" x="{_LEGEND}" y="{y - 9}" width="12" height="12" rx="3"/>'
        yield f'<text class="name" x="{_LEGEND + 22}" y="{y + 1}">{_text(_short(band.name, 14))}</text>'
        yield f'<text class="count end" x="{_EDGE}" y="{y + 1}">{band.counts[-1]:,}</text>'
    y = _TOP + 10 + len(bands) * 27
    yield f'<path class="grid" d="M{_LEGEND} {y - 14}H{_EDGE}"/>'
    yield f'<text class="name" x="{_LEGEND + 22}" y="{y + 6}">Total</text>'
    yield f'<text class="count end" x="{_EDGE}" y="{y + 6}">{sum(band.counts[-1] for band in bands):,}</text>'


def _authors(authors: Mapping[str, int]) -> Iterator[str]:
    yield f'<text class="axis" x="{_LEGEND}" y="{_BARS_TOP - 14}">Author</text>'
    yield f'<text class="axis end" x="{_EDGE}" y="{_BARS_TOP - 14}">commits</text>'
    for row, (name, commits) in enumerate(list(authors.items())[:4]):
        y = _BARS_TOP + 11 + row * 23
        yield f'<text class="name" x="{_LEGEND}" y="{y}">{_text(_short(name, 17))}</text>'
        yield f'<text class="count end" x="{_EDGE}" y="{y}">{commits:,}</text>'


def _calendar(start: int, end: int, across: Callable[[float], float]) -> Iterator[str]:
    for at, label in _ticks(start, end):
        x = across(at)
        yield f'<path class="grid" d="M{x:.1f} {_TOP}V{_BASELINE}M{x:.1f} {_BARS_TOP}V{_BARS_BASELINE}"/>'
        yield f'<text class="tick mid" x="{x:.1f}" y="{_BARS_BASELINE + 21}">{_text(label)}</text>'


# ── Time ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _month(number: int) -> int:
    """Unix seconds at which the n-th month after the year 0 begins."""
    year, month = divmod(number, 12)
    return round(datetime(min(max(year, 1), 9999), month + 1, 1, tzinfo=UTC).timestamp())


def _months_until(at: float) -> int:
    when = _utc(at)
    return when.year * 12 + when.month - 1


@dataclass(frozen=True, slots=True)
class _Period:
    """A calendar period, numbered from a fixed origin: a number of days, or else of months."""

    name: str
    days: int = 0
    months: int = 0

    def number(self, day: int) -> int:
        # Day 0 was a Thursday; three days more make weeks begin on Mondays.
        return (day + 3) // self.days if self.days else _months_until(day * 86_400) // self.months

    def start(self, number: int) -> int:
        return (number * self.days - 3) * 86_400 if self.days else _month(number * self.months)

    def label(self, at: int) -> str:
        when = _utc(max(at, 0))
        return f"{when.day} {when:%b %Y}" if self.days else f"{when:%Y}" if self.months == 12 else f"{when:%b %Y}"


_PERIODS = (
    _Period("day", days=1),
    _Period("week", days=7),
    _Period("month", months=1),
    _Period("quarter", months=3),
    _Period("year", months=12),
)


def _periods(days: Mapping[int, int]) -> tuple[_Period, dict[int, int]]:
    """The shortest period that gives at most 120 bars, and the commits in each."""
    first, last = min(days, default=0), max(days, default=0)
    period = next((p for p in _PERIODS if p.number(last) - p.number(first) < 120), _PERIODS[-1])
    counts: dict[int, int] = {}
    for day, commits in days.items():
        counts[period.number(day)] = counts.get(period.number(day), 0) + commits
    return period, counts


_CLOCK_STEPS = (600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
_DAY_STEPS = (1, 2, 5, 10)
_MONTH_STEPS = (1, 3, 6, 12, 24, 60, 120, 240)


def _ticks(start: int, end: int) -> Iterator[tuple[int, str]]:
    """Round calendar times with their labels, at most eight."""
    most = 8
    for step in (*_CLOCK_STEPS, *(days * 86_400 for days in _DAY_STEPS)):
        if (end - start) / step <= most:
            for at in range(math.ceil(start / step) * step, end + 1, step):
                when = _utc(at)
                yield at, f"{when.day} {when:%b}" if step >= 86_400 else f"{when.day} {when:%b %H:%M}"
            return
    first, last = _months_until(start), _months_until(end)
    step = next((months for months in _MONTH_STEPS if (last - first) / months <= most), _MONTH_STEPS[-1])
    for number in range(math.ceil(first / step) * step, last + 1, step):
        if (at := _month(number)) >= start:
            yield at, f"{_utc(at):%Y}" if step >= 12 else f"{_utc(at):%b %Y}"


# ── Text and numbers ────────────────────────────────────────────────────────────────────────────────────────────


def _nice(rough: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, …

    >>> [_nice(n) for n in (0.5, 3, 51, 1001)]
    [1, 5, 100, 2000]
    """
    power: int = 10 ** max(math.floor(math.log10(rough)), 0)
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _brief(count: int) -> str:
    """
    >>> _brief(950), _brief(1500), _brief(20_000), _brief(2_500_000)
    ('950', '1.5k', '20k', '2.5M')
    """
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    return str(count)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _sentence(band: _Band) -> str:
    return f"{band.name}: {_plural(band.counts[-1], 'line')} now, {max(band.counts):,} at its peak"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _text(text: str) -> str:
    """Escaped for XML, without control characters and lone surrogates, which XML forbids even escaped."""
    return escape("".join(c if c.isprintable() else "�" for c in text))


def _colours(colours: Sequence[str]) -> str:
    return "".join(f".evolution .c{i}{{fill:{colour}}}" for i, colour in enumerate(colours))


def _theme(paper: str, ink: str, soft: str, grid: str, base: str, bar: str, colours: Sequence[str]) -> str:
    return (
        f".evolution .paper{{fill:{paper}}}.evolution .area{{stroke:{paper}}}.evolution text{{fill:{soft}}}"
        f".evolution .title,.evolution .name{{fill:{ink}}}.evolution .grid{{stroke:{grid}}}"
        f".evolution .base{{stroke:{base}}}.evolution .bar{{fill:{bar}}}{_colours(colours)}"
    )


_STYLE = (
    ".evolution text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    ".evolution .title{font-size:21px;font-weight:600}.evolution .soft{font-size:13px}"
    ".evolution .axis{font-weight:600}.evolution .name,.evolution .count{font-size:13px}"
    ".evolution .tick,.evolution .count{font-variant-numeric:tabular-nums}"
    ".evolution .end{text-anchor:end}.evolution .mid{text-anchor:middle}"
    ".evolution .grid,.evolution .base{fill:none;stroke-width:1}"
    ".evolution .area{stroke-width:1;stroke-linejoin:round}"
    + _theme("#fcfcfb", "#1f1f1d", "#6b6a65", "#e9e8e4", "#b9b8b2", "#8d8c86", _LIGHT)
    + "@media(prefers-color-scheme:dark){"
    + _theme("#1a1a19", "#f2f1ed", "#a3a29b", "#2e2e2c", "#5b5a56", "#8b8a84", _DARK)
    + "}"
)
