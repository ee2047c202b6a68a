"""The stores: one file each, every one of them `ports.Store`. The memory store is the executable specification."""

from __future__ import annotations
