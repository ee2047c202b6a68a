"""The ownership protocol, searched exhaustively. Read `world.py`, `protocol.py` (the steps), `search.py`."""

from __future__ import annotations
