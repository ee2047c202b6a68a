"""Limits as values: how many jobs of a key run at a time, and how many begin in a period. Pure functions.

The rate is a token bucket over *begins*, the claims of jobs: it holds at most `burst` tokens, each begin takes one, and
it is refilled at `(most + 1 - burst) / period`. A job is admitted only while there are more whole tokens than jobs that
are admitted and have not begun, so no begin ever finds the bucket empty. In any period, then, fewer than
`burst + (most + 1 - burst)` begin, which is `most` of them or fewer: even after the workers were away, with retries
and rescues. A job that is admitted and never begins has taken nothing, and so has nothing to give back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Key(NamedTuple):
    """A key of a limit: the limit's template with the arguments of a job, as `shop:42`; `limit` is the template."""

    key: str
    limit: str


def stem(template: str) -> str:
    """The prefix of all keys of a limit; keys of other limits may begin with it too.

    >>> stem("shop:{shop}")
    'shop:'
    """
    return template.partition("{")[0]


class Rate(NamedTuple):
    """At most `most` begins in any `period` (seconds), at most `burst` of them at once."""

    most: int
    period: float
    burst: int

    @property
    def refill(self) -> float:
        """Tokens a second."""
        return (self.most + 1 - self.burst) / self.period


class Bounds(NamedTuple):
    """What a limit allows. None: any number."""

    concurrency: int | None = None
    rate: Rate | None = None


#: A begin reported as later than `now` by less than this came after `now` was read; by more: the clock was set back
#: meanwhile. Longer than a store's slowest answer.
LATER_SECONDS = 10.0


class Bucket(NamedTuple):
    """The tokens of a key at the Unix time `at`."""

    tokens: float
    at: float

    def refilled(self, rate: Rate, now: float) -> Bucket:
        """The bucket at `now`. A clock that was set back adds nothing, and the refill goes on from its new time.

        A bucket that is a little ahead of `now` stays ahead: what it has gained already it must not gain again.

        >>> Bucket(0.0, 100.0).refilled(Rate(100, 60.0, 10), 106.0).tokens
        9.1
        >>> Bucket(2.0, 100.0).refilled(Rate(100, 60.0, 10), 40.0)
        Bucket(tokens=2.0, at=40.0)
        """
        if now < self.at < now + LATER_SECONDS:
            return self
        gained = max(now - self.at, 0.0) * rate.refill
        return Bucket(min(float(rate.burst), self.tokens + gained), now)


def after_begins(bucket: Bucket | None, rate: Rate, begins: Iterable[float], now: float) -> Bucket:
    """The bucket of a key now, with these begins (Unix times) since it was last looked at. None: a key that is new.

    A begin that is reported late, after tokens were added for later times, takes its token from what is there. For one
    that came after `now` was read, the bucket is first brought to the time of the begin: a full one gains nothing by
    that, and must not gain it later, when there is room.

    >>> after_begins(None, Rate(100, 60.0, 10), [100.0, 100.0], 100.0).tokens
    8.0
    """
    told = sorted(begins)
    found = bucket or Bucket(float(rate.burst), min([now, *told[:1]]))
    for at in told:
        if found.at < at < now + LATER_SECONDS:
            found = found.refilled(rate, at)
        found = Bucket(found.tokens - 1.0, found.at)
    return found.refilled(rate, now)


def next_token(bucket: Bucket, rate: Rate, unbegun: int) -> float:
    """Seconds until one more job may be admitted, while `unbegun` are admitted and have not begun; 0: now.

    >>> next_token(Bucket(3.0, 0.0), Rate(1, 60.0, 1), 2), next_token(Bucket(0.5, 0.0), Rate(60, 60.0, 1), 0)
    (0.0, 0.5)
    """
    return max(0.0, (unbegun + 1 - bucket.tokens) / rate.refill)


def room(bounds: Bounds, bucket: Bucket | None, *, held: int, unbegun: int) -> int | None:
    """How many more jobs of a key may be admitted; None: any number.

    `held`: the jobs that have a place, queued or processing; `unbegun`: those of them that no worker has claimed yet.

    >>> room(Bounds(3), None, held=2, unbegun=1), room(Bounds(), None, held=2, unbegun=1)
    (1, None)
    >>> room(Bounds(30, Rate(100, 60.0, 10)), Bucket(4.9, 0.0), held=2, unbegun=1)
    3
    """
    free = None if bounds.concurrency is None else bounds.concurrency - held
    if bounds.rate is not None and bucket is not None:
        tokens = int(bucket.tokens + 1e-9) - unbegun  # a sum of many small refills
        free = tokens if free is None else min(free, tokens)
    return None if free is None else max(0, free)
