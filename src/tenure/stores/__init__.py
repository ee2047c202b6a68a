"""The stores: one package each, all implementing `ports.Store`. The memory store is the executable specification."""

from __future__ import annotations
