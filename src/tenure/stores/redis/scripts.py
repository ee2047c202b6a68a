"""The Lua scripts as they are sent to a server: with the code that they share, adapted to its version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib import resources

SHEBANG_SINCE = 7, 0
# Leases and due times use the server's clock. Only tests pass a clock of their own, as the last argument.
_TIME = "local time = redis.call('TIME')\nlocal now = time[1] * 1000 + math.floor(time[2] / 1000)\n"
# Before Redis 7 a script that runs out of memory is refused at its first write, unless that write needs no memory.
_ALLOW_OOM = "redis.call('DEL', KEYS[1])\n"
_GIVEN_TIME = "local now = tonumber(table.remove(ARGV))\n"
#: The scripts about jobs that wait, which share waits.lua.
_WAITS = frozenset(
    (
        "admit",
        "delete",
        "end",
        "enqueue_linked",
        "outdated",
        "prune",
        "reopen",
        "replay",
        "skip",
        "stage",
        "tie",
        "unpack",
        "give",
        "lost_waits",
    )
)
_KEYS = frozenset(("give", "idle", "withdraw"))  #: those that give and withdraw places, which share keys.lua


@dataclass(frozen=True, slots=True)
class Script:
    """One transition, as text and as the digest under which the server caches it."""

    text: str
    digest: str


class Scripts:
    """The scripts for one server."""

    def __init__(self, *, given_time: bool, rings: bool) -> None:
        self.server_version: tuple[int, int] = SHEBANG_SINCE
        self._given_time, self._rings = given_time, rings

    @property
    def shebang(self) -> bool:
        return self.server_version >= SHEBANG_SINCE

    def load(self, name: str) -> Script:
        return compose(name, shebang=self.shebang, given_time=self._given_time, rings=self._rings)


@cache  # composing takes some 3 ms, longer than most scripts run, and all stores of a process share them
def compose(name: str, *, shebang: bool, given_time: bool, rings: bool) -> Script:
    """`lua/NAME.lua` with the code that all scripts share. Its first line has its flags, such as `allow-oom`."""
    first, _, rest = _text(name).partition("\n")
    shared = _text("common") + (_text("waits") if name in _WAITS else "") + (_text("keys") if name in _KEYS else "")
    head = (_GIVEN_TIME if given_time else _TIME) + _used(shared, rest + _text("rings"))
    if shebang:
        head = f"{first}\n{head}"
    elif "allow-oom" in first:
        head = _ALLOW_OOM + head
    if rings and "no-writes" not in first:
        text = f"{head}local answer = (function()\n{rest}end)()\n{_text('rings')}return answer\n"
    else:
        text = head + rest
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _used(shared: str, script: str) -> str:
    """The shared code that this script uses: every call creates each function again (measured: 15 µs for all)."""
    kept = ""
    for part in reversed(re.split(r"^(?=local )", shared, flags=re.MULTILINE)):  # each uses only those above it
        names = re.match(r"local (?:function )?(\w+(?:, \w+)*)", part)
        if names is None or re.search(rf"\b(?:{names[1].replace(', ', '|')})\b", script + kept):
            kept = part + kept
    return kept


@cache
def _text(name: str) -> str:
    return resources.files("tenure.stores.redis").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


@cache
def commands() -> list[str]:
    """All commands that the scripts call."""
    texts = (
        _text(file.name.removesuffix(".lua"))
        for file in resources.files("tenure.stores.redis").joinpath("lua").iterdir()
    )
    return sorted({name for text in texts for name in re.findall(r"redis\.call\('([A-Z]+)'", text)})
