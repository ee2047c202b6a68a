"""The command line: one small file per noun. Nothing heavy is imported before its command runs."""

from __future__ import annotations
