"""I19 to I21, I25: jobs that wait begin after what they wait for, are given what it left, and no signal or ask is lost.

That every flow ends is I7's: all jobs end once faults are over. A load without flows is judged too: nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from .history import Event
from .seen import Call, Seen, Story


def i19(seen: Seen) -> Iterator[str]:
    """A job begins, or goes on, only after the jobs that it waits for have completed."""
    for story in seen.stories.values():
        for asked in story.of_edges:
            for event in _goes_on(story, asked):
                for parent in asked.data["parents"]:
                    yield from _too_early(seen, story, event, parent)


def _goes_on(story: Story, asked: Event) -> list[Event]:
    """What it may do only after its parents: everything, or, for a gatherer, what it does with their results.

    An attempt that is killed between listing its children and storing them leaves none: the next one lists its own.
    """
    if not asked.data["gathered"]:
        return story.begins()
    return [event for event in story.of("given") if event.data["of"] == asked.data["of"]]


def _too_early(seen: Seen, story: Story, event: Event, parent: str) -> Iterator[str]:
    before = seen.stories.get(parent)
    ends = [each.at for each in before.of("end") if each.data.get("how") == "return"] if before else []
    if not any(at < event.at for at in ends) and not seen.forgotten(-inf, event.at, event.at):
        when = f"ended first at {min(ends):.3f}" if ends else "never ended"
        yield f"{story.name}, attempt {event.attempt}: its {event.op} at {event.at:.3f}, and job {parent!r} {when}"


def i20(seen: Seen) -> Iterator[str]:
    """The results that a job is given are what its parents left, in their order, and it had listed those parents."""
    for story in seen.stories.values():
        listed = {asked.data["of"] for asked in story.of_edges}
        for event in story.of("given"):
            if event.data["of"] not in listed:
                what = f"given {event.data['values']!r:.200}"
                yield f"{story.name}, attempt {event.attempt}: {what}, which it never listed"
        for asked in story.of_edges:
            stories = [seen.stories.get(parent) for parent in asked.data["parents"]]
            left = [each.job.result if each and each.job else None for each in stories]
            for event in story.of("given"):
                given = event.data["values"]
                sure = not seen.forgotten(-inf, event.at, inf)
                if event.data["of"] == asked.data["of"] and given != left and sure:
                    yield (
                        f"{story.name}, attempt {event.attempt}: given {given!r:.200} at {event.at:.3f}, and its "
                        f"parents left {left!r:.200}"
                    )


def i21(seen: Seen) -> Iterator[str]:
    """A signal that was taken reaches its job, once and for all; a job that hears one was sent it."""
    for story in seen.stories.values():
        heard = story.of("heard")
        sent = [call for call in story.calls["signal"] if call.possible]
        taken = [call for call in sent if call.ok and call.data.get("taken")]
        values = {event.data["value"] for event in heard}
        if len(values) > 1 and not seen.forgotten(-inf, heard[0].at, inf):
            yield f"{story.name} heard {sorted(map(str, values))}: what it heard first stands"
        if len(taken) > 1 and not seen.forgotten(taken[0].began, taken[0].ended, inf):
            yield f"{story.name}: two signals were taken, at {taken[0].ended:.3f} and at {taken[1].ended:.3f}"
        for value in values - {None} - {call.data["value"] for call in sent}:
            yield f"{story.name} heard {value!r}, which nobody had sent"
        yield from _lost(seen, story, heard, taken)


def _lost(seen: Seen, story: Story, heard: list[Event], taken: list[Call]) -> Iterator[str]:
    """The job timed out, though the signal was there before it began to wait."""
    for event in heard:
        for call in taken:
            early = call.ended < event.data["since"]
            if event.data["value"] is None and early and not seen.forgotten(call.began, call.ended, event.at):
                yield (
                    f"{story.name}: signal {call.data['value']!r} was taken at {call.ended:.3f}, and the job, which "
                    f"began to wait at {event.data['since']:.3f}, heard none"
                )


def i25(seen: Seen) -> Iterator[str]:
    """What ends a wait stores an ask with it: no job was found waiting for what had happened, with no ask left."""
    for job in seen.dump.lost_waits:
        yield f"job {job} waited for something that had happened, with no ask left"
