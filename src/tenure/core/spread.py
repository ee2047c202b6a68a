"""How values spread, in few numbers: counts by bins whose bounds grow by a tenth, so a quantile is off by 5% at most.

spread: Spread = {}
add(spread, 0.21)
quantile(spread, 0.95)  # 0.21, to 5%
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log

Spread = dict[int, float]  #: how many values, by bin; in a sample, each may count for more than one
_GROWTH = 1.1
_LEAST = 0.0005  #: seconds: shorter times share one bin


def add(spread: Spread, value: float, weight: float = 1.0) -> None:
    place = floor(log(max(value, _LEAST)) / log(_GROWTH))
    spread[place] = spread.get(place, 0.0) + weight


def merge(into: Spread, other: Mapping[int, float]) -> None:
    for place, weight in other.items():
        into[place] = into.get(place, 0.0) + weight


def quantile(spread: Mapping[int, float], share: float) -> float | None:
    """The value that this share of all values does not exceed, to two digits; None if there are none."""
    left = share * sum(spread.values()) - 1e-9
    for place in sorted(spread):
        left -= spread[place]
        if left <= 0:
            break
    else:
        return None
    return float(f"{_GROWTH ** (place + 0.5):.2g}")
