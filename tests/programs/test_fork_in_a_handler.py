"""A handler that forks: the child is no second worker, however its code ends, and the parent notices nothing."""

from __future__ import annotations

import pytest

from .harness import Programs

APP = """
import asyncio, os, sys
from tenure import Tenure

jobs = Tenure()

def note(what: str) -> None:
    with open("notes", "a") as file:
        file.write(f"{os.getpid()} {what}\\n")

@jobs.around
def around(job):
    try:
        yield
    finally:
        note("around")

@jobs.task
async def neighbour() -> None:
    try:
        for number in range(20):
            note(f"step {number}")
            await asyncio.sleep(0.05)
    finally:
        note("cleanup")

async def ends(how: str) -> None:
    if how == "awaits":
        await asyncio.sleep(0)
        note("went on")
    elif how == "exits":
        sys.exit(3)
    elif how == "raises":
        raise KeyError(how)

def ended(child: tuple[int, int]) -> int:
    code = os.waitstatus_to_exitcode(child[1])
    note(f"child {code}")
    return code

@jobs.task
async def forks(how: str) -> int:
    await asyncio.sleep(0.2)
    pid = os.fork()
    if pid == 0:
        return await ends(how)
    return ended(await asyncio.to_thread(os.waitpid, pid, 0))

@jobs.task
def plain(how: str) -> int:
    pid = os.fork()
    if pid == 0:
        return sys.exit(3) if how == "exits" else {}[how] if how == "raises" else 0
    return ended(os.waitpid(pid, 0))
"""
CODES = {"exits": 3, "raises": 1, "awaits": 1, "returns": 0}


def found(programs: Programs) -> list[str]:
    """The notes of the parent, once it is known that no other process has made one."""
    notes = [line.split(maxsplit=1) for line in (programs.folder / "notes").read_text().splitlines()]
    assert len({pid for pid, _ in notes}) == 1, notes
    return [what for _, what in notes]


def check(programs: Programs, how: str) -> None:
    notes = found(programs)
    assert [each for each in notes if each.startswith("step")] == [f"step {number}" for number in range(20)]
    assert notes.count("cleanup") == 1
    assert notes.count("around") == (2 if how == "awaits" else 3)  # its own three jobs; `plain` can't await
    children = [each for each in notes if each.startswith("child")]
    assert children == [f"child {CODES[how]}"] * (1 if how == "awaits" else 2)
    assert "went on" not in notes


@pytest.mark.parametrize("how", CODES)
def test_a_child_of_an_embedded_workers_handler_is_no_second_worker(programs: Programs, how: str) -> None:
    kinds = ("forks",) if how == "awaits" else ("forks", "plain")
    programs.run(f"""{APP}
async def main() -> None:
    async with jobs.worker():
        handles = [await neighbour.aenqueue()]
        codes = [await (await each.aenqueue({how!r})).aresult("50s") for each in ({", ".join(kinds)},)]
        await handles[0].aresult("50s")
    assert codes == [{CODES[how]}] * {len(kinds)}, codes

asyncio.run(main())
""")
    check(programs, how)


@pytest.mark.parametrize("how", CODES)
def test_a_child_of_a_handler_on_the_workers_own_loop_is_no_second_worker(programs: Programs, how: str) -> None:
    kinds = ("forks",) if how == "awaits" else ("forks", "plain")
    programs.run(f"""{APP}
with jobs.worker():
    first = neighbour.enqueue()
    codes = [each.enqueue({how!r}).result("50s") for each in ({", ".join(kinds)},)]
    first.result("50s")
assert codes == [{CODES[how]}] * {len(kinds)}, codes
""")
    check(programs, how)


@pytest.mark.parametrize("how", CODES)
def test_a_child_of_a_handler_of_tenure_worker_is_no_second_worker(programs: Programs, how: str) -> None:
    kinds = ("forks",) if how == "awaits" else ("forks", "plain")
    programs.run(f"""{APP}
if __name__ == "__main__":
    neighbour.enqueue()
    for each in ({", ".join(kinds)},):
        each.enqueue({how!r})
""")
    programs.work(APP)
    check(programs, how)
