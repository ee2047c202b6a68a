"""The protocols, searched exhaustively. Read `search.py`, then one protocol: `world.py` and `protocol.py` (ownership),
`messages.py`, `declarations.py`, `schedules.py`, `links.py`, `admission.py` and `waiting.py`, `signals.py`, `times.py`,
`places.py`, `rates.py`, `seals.py`. `models.py` lists them with their bounds.
"""

from __future__ import annotations
