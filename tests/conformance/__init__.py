"""What every store promises, written against `tenure.ports` alone. Stores are named in `tests/conftest.py` only."""

from __future__ import annotations
