"""Errors cross the borders of processes, as pools of them need."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from inspect import isclass

import pytest

from tenure import Fail, Snooze, errors
from tenure.errors import JobFailed, JobStopped, LeaseLost, Locked, NotFetched, TenureError

MADE: list[BaseException] = [
    *(
        kind("what happened")
        for kind in vars(errors).values()
        if isclass(kind) and issubclass(kind, TenureError) and kind not in (JobFailed, Locked, NotFetched)
    ),
    JobFailed("an id", "dead", "no disk"),
    Locked("its result", "no key", altered=True),
    NotFetched("its result", "no bucket"),
    JobStopped("cancel"),
    LeaseLost("lease_lost"),
    Snooze("10m", "closed"),
    Fail("no such page", retry_in="5s", final=True),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: BaseException) -> None:
    error.add_note("beside it")
    for other in (pickle.loads(pickle.dumps(error)), copy(error)):
        assert type(other) is type(error)
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


def fails() -> None:
    raise JobFailed("an id", "dead", "no disk")


def test_a_pool_of_processes_goes_on_after_a_failed_job() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for _ in range(2):
            with pytest.raises(JobFailed, match="an id is dead: no disk") as failed:
                pool.submit(fails).result()
            assert failed.value.state == "dead"
