"""One trace as a table and a picture in docs/tracing.md: `PYTHONPATH=tests python -m crash.trace_picture`.

The spans are those that a collector was sent while `test_traces.tell_story` ran: a request of a web app, a worker that
was killed, and the one that took its place.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from otlp import Collector, Seen

from .backends import Place
from .harness import Site
from .test_traces import tell_story

DOCS = Path(__file__).parents[2] / "docs"
ROW, LEFT, RIGHT, TOP = 34, 330, 930, 78
ABOUT = (
    "A web request enqueues a job. The worker of its first attempt is killed, and the job is rescued. "
    "Its second attempt enqueues another job, which runs. All of it is one trace."
)
STYLE = """
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #1f2328 }
  .paper { fill: #ffffff } .faint { fill: #57606a } .line { stroke: #d0d7de } .tree { fill: none; stroke: #afb8c1 }
  .title { font: 600 16px system-ui, -apple-system, 'Segoe UI', sans-serif }
  .server { fill: #8250df } .producer { fill: #0969da } .consumer { fill: #1a7f37 } .internal { fill: #8c959f }
  .error { fill: #cf222e } .event { stroke: #9a6700; stroke-width: 2.5 }
"""


def in_order(spans: Sequence[Seen]) -> list[tuple[int, Seen]]:
    """Each after its parent, with its depth; siblings in order of their begin."""
    found: list[tuple[int, Seen]] = []

    def below(parent: str, depth: int) -> None:
        for span in sorted((each for each in spans if each.parent == parent), key=lambda each: each.begin):
            found.append((depth, span))
            below(span.id, depth + 1)

    below("", 0)
    return found


def spent(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:,.1f} ms"


def note(span: Seen) -> str:
    known = span.attributes
    told = [f"attempt {known['tenure.attempt']}: {known['tenure.outcome']}"] if "tenure.attempt" in known else []
    told += [f"job `{known['tenure.job_id'][-6:]}`"] if "tenure.job_id" in known else []
    told += [f"**{span.says}**"] if span.status == "error" else []
    told += [
        f"event `{name}`, cause `{about['tenure.cause']}`" for name, about in span.events if "tenure.cause" in about
    ]
    return "; ".join(told)


def table(rows: Sequence[tuple[int, Seen]]) -> str:
    begin = min(span.begin for _, span in rows)
    lines = ["| span | kind | process | begins | takes | what it says |", "| --- | --- | --- | --- | --- | --- |"]
    for depth, span in rows:
        name = f"{'· ' * depth}`{span.name}`"
        when = f"{spent(span.begin - begin)} | {spent(span.end - span.begin)}"
        lines.append(f"| {name} | {span.kind} | {span.service} | {when} | {note(span)} |")
    return "\n".join(lines)


def picture(rows: Sequence[tuple[int, Seen]]) -> str:
    """The rows as bars over time. A mark shows where a rescue ended an attempt."""
    begin, end = min(span.begin for _, span in rows), max(span.end for _, span in rows)
    height = TOP + ROW * len(rows) + 24

    def across(at: int) -> float:
        return LEFT + (at - begin) / (end - begin) * (RIGHT - LEFT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1060 {height}" role="img" aria-labelledby="t d">',
        '<title id="t">One trace</title>',
        f'<desc id="d">{ABOUT}</desc>',
        f'<style>{STYLE}</style><rect class="paper" width="1060" height="{height}" rx="8"/>',
        f'<text class="title" x="24" y="34">Trace {rows[0][1].trace}</text>',
        f'<text class="faint" x="{LEFT}" y="58">0 ms</text>',
        f'<text class="faint" x="{RIGHT}" y="58" text-anchor="end">{spent(end - begin)}</text>',
        f'<path class="line" d="M{LEFT} 66H{RIGHT}"/>',
    ]
    for number, (depth, span) in enumerate(rows):
        y, x = TOP + ROW * number, across(span.begin)
        width = max(across(span.end) - x, 2.0)
        kind = "error" if span.status == "error" else span.kind
        attempt = f" #{span.attributes['tenure.attempt']}" if "tenure.attempt" in span.attributes else ""
        if depth:
            parts.append(f'<path class="tree" d="M{18 + 16 * depth} {y - 4}v{ROW / 2 + 2}h8"/>')
        parts += [
            f'<text x="{24 + 16 * depth + (6 if depth else 0)}" y="{y + 18}">{escape(span.name + attempt)}</text>',
            f'<rect class="{kind}" x="{x:.1f}" y="{y + 5}" width="{width:.1f}" height="18" rx="3"/>',
            f'<text class="faint" x="{x + width + 8:.1f}" y="{y + 18}">{spent(span.end - span.begin)}</text>',
        ]
        if any(name == "tenure.rescue" for name, _ in span.events):
            at = x + width
            parts.append(f'<path class="event" d="M{at:.1f} {y}v28"/>')
            parts.append(f'<text class="error" x="{at + 76:.1f}" y="{y + 18}">killed, rescued</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Collector() as collector:
        with Site(Path(folder), Place(f"sqlite:///{folder}/tenure.db")) as site:
            rows = in_order(tell_story(site, collector))
    (DOCS / "images" / "trace.svg").write_text(picture(rows), encoding="utf-8")
    page = DOCS / "tracing.md"
    inside = re.compile(r"(?<=<!-- traced -->\n).*?(?=<!-- end -->)", re.DOTALL)
    made = table(rows) + "\n"
    page.write_text(inside.sub(lambda _: made, page.read_text(encoding="utf-8")), encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
