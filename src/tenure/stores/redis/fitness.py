"""Checks whether a server is fit to be a store; an unfit one is refused with an error that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from tenure.core.logs import logger
from tenure.core.text import UPGRADE
from tenure.errors import StoreError

OLDEST = (6, 2)

_log = logger("tenure.store")


def refuse_unfit(url: str, info: Mapping[str, str]) -> None:
    """Refuse, by INFO, a server that is too old, a replica, or may evict jobs. Warn about one that may lose them."""
    if version_of(info) < OLDEST:
        raise StoreError(f"{url} is Redis {info['redis_version']}: Tenure needs 6.2 or newer, or Valkey")
    if info.get("role") != "master":
        raise StoreError(f"{url} is a replica of {info.get('master_host')}:{info.get('master_port')}: give its URL")
    if info.get("maxmemory_policy", "noeviction") != "noeviction":
        raise StoreError(
            f"{url} has maxmemory-policy {info['maxmemory_policy']}: it may evict jobs when memory is "
            "short. CONFIG SET maxmemory-policy noeviction, and write it into its configuration"
        )
    if info.get("aof_enabled") == "0":
        _warn_once(
            f"{url} keeps no append-only file: when it stops, everything since its last snapshot is lost, jobs too. "
            "CONFIG SET appendonly yes, and write it into its configuration (docs/delivery.md says what each "
            "setting may lose)"
        )


def refuse_schema(url: str, key: str, version: str, newest: int) -> None:
    if not version.isdecimal():
        raise StoreError(f"{url}: {key} was not written by Tenure: choose another namespace (TENURE_NAMESPACE)")
    if int(version) > newest + 1:
        raise StoreError(
            f"{url}: {key.removesuffix('schema')} has version {int(version)} of the schema, this Tenure knows {newest} "
            f"and accepts one newer: {UPGRADE}"
        )


def version_of(info: Mapping[str, str]) -> tuple[int, int]:
    """Valkey reports itself as Redis 7.2 there, and supports at least as much."""
    major, minor, *_ = info["redis_version"].split(".")
    return int(major), int(minor)


@cache
def _warn_once(sentence: str) -> None:
    _log.warning(sentence)
