"""What the garbage collector warns of: something that was dropped while it was open."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def nothing_dropped_open() -> Generator[None]:
    """Fail if this block drops a socket, a file or an event loop that is open. What others dropped does not count."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(each.message) for each in told] == []
