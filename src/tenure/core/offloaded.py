"""What stands for a value that is kept outside the store: a JSON string with its size in bytes and its SHA-256 hash.

    "tenure:offloaded:1:3145728:9f86d081884c7d65…"

Only a store that was opened with a bucket writes this form (stores/offload). Reads do not follow it, as that may take
long: code that needs the value asks the store to `fetch` it.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import NamedTuple

MARK = '"tenure:offloaded:'
ELSEWHERE = "kept elsewhere: "  #: the start of what people read in place of such a value
_FORM = re.compile(MARK + r'1:(\d{1,15}):([0-9a-f]{64})"')


class Offloaded(NamedTuple):
    """What the row has in place of the value."""

    size: int
    digest: str

    def name(self, job_id: str) -> str:
        """The name of this value of a job in the bucket. All values of one job are in the same folder, one of 256."""
        return f"{job_id[-2:]}/{job_id}.{self.digest}"


def offloaded(data: bytes) -> str:
    """What the row has in place of this value.

    >>> offloaded(b"{}")[:30]
    '"tenure:offloaded:1:2:44136fa3'
    """
    return f'{MARK}1:{len(data)}:{sha256(data).hexdigest()}"'


def is_offloaded(text: str) -> bool:
    """Does this stand for a value that is kept outside the store?

    >>> is_offloaded('{"order":7}'), is_offloaded(offloaded(b"{}"))
    (False, True)
    """
    return text.startswith(MARK)


def parsed(text: str) -> Offloaded | None:
    """Which value this stands for; None: for none.

    >>> parsed('{"order":7}'), parsed(offloaded(b"{}")).size
    (None, 2)
    """
    found = _FORM.fullmatch(text)
    return Offloaded(int(found[1]), found[2]) if found else None


def elsewhere(text: str) -> str:
    """What people read in its place.

    >>> elsewhere(offloaded(b"{}"))
    'kept elsewhere: 2 bytes'
    """
    found = parsed(text)
    return f"{ELSEWHERE}{found.size:,} bytes" if found else f"{ELSEWHERE}not in a form that this release knows"
