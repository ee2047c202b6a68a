"""Where large values are kept: a folder, or a bucket of S3, Google Cloud Storage or Azure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import nsmallest
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import unquote

from tenure.core.text import clean, install
from tenure.errors import InvalidOption

CALL_SECONDS = 20.0  #: one request, from the connection to the last byte
_CONNECT_SECONDS = 5.0
LONGEST_ERROR = 300  #: characters
_LEFTOVER_SECONDS = 86_400.0  #: after which a file that a killed process was writing is removed


class Entry(NamedTuple):
    """An object of the bucket. `modified`: in Unix seconds, by the bucket's clock."""

    name: str
    modified: float


class Bucket(Protocol):
    """Objects by name, in folders: `values/3f/…`. Any call may raise what its library raises."""

    def is_missing(self) -> bool:
        """Would the first object make the bucket? So it is where a network file system is not mounted."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write the object, over one of the same name; when this returns, it survives a power failure."""
        ...

    def get(self, name: str, size: int) -> bytes:
        """Its content, or something else if that is larger than `size`. Raises LookupError if there is none."""
        ...

    def names(self, folder: str, after: str, limit: int) -> list[Entry]:
        """The next objects of the folder in the order of their names, which are relative to the folder."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete those that exist."""
        ...


class Folder:
    """A folder that all processes reach: on one machine, or on a network file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return f"the folder {self._path}"

    def is_missing(self) -> bool:
        return not self._path.is_dir()

    def put(self, name: str, data: bytes) -> None:
        path = self._path / name
        _make(path.parent)
        unfinished = path.with_name(f".{token_hex(8)}")
        try:
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
        _sync(path.parent)

    def get(self, name: str, size: int) -> bytes:
        try:
            with (self._path / name).open("rb") as file:
                return file.read(size + 1)
        except FileNotFoundError as error:
            raise LookupError(name) from error

    def names(self, folder: str, after: str, limit: int) -> list[Entry]:
        found: list[Entry] = []
        for group in sorted(_listed(self._path / folder)):
            if group >= after.partition("/")[0] and len(found) < limit:
                inside = (f"{group}/{name}" for name in self._finished(self._path / folder / group))
                for name in nsmallest(limit - len(found), (name for name in inside if name > after)):
                    with suppress(FileNotFoundError):  # another process has just deleted it
                        found.append(Entry(name, (self._path / folder / name).stat().st_mtime))
        return found

    def _finished(self, folder: Path) -> Iterator[str]:
        for name in _listed(folder):
            if not name.startswith("."):
                yield name
                continue
            with suppress(FileNotFoundError):
                if (folder / name).stat().st_mtime < time() - _LEFTOVER_SECONDS:
                    (folder / name).unlink()

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            (self._path / name).unlink(missing_ok=True)


def _listed(folder: Path) -> list[str]:
    try:
        return [each.name for each in folder.iterdir()]
    except FileNotFoundError:
        return []


def _make(folder: Path) -> None:
    """With its parents, each of which is on disk when this returns."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Remote:
    """A bucket that obstore reaches. Its credentials come from where that cloud's tools take them."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            from obstore.store import from_url
        except ModuleNotFoundError as error:
            raise InvalidOption(f"offload: {error.name} is not installed: {install('blobs')}") from error
        bounds: dict[str, Any] = {
            "timeout": f"{CALL_SECONDS:.0f}s",
            "connect_timeout": f"{_CONNECT_SECONDS:.0f}s",
            "allow_http": True,  # it is used only where the environment names an endpoint of that kind
        }
        try:
            self._store: Any = from_url(url, client_options=cast("Any", bounds), retry_config={"max_retries": 0})
        except Exception as error:  # its errors have no type in common
            raise InvalidOption(f"offload: {url}: {headline(error)}") from error

    def __str__(self) -> str:
        return self._url

    def is_missing(self) -> bool:
        return False

    def put(self, name: str, data: bytes) -> None:
        self._store.put(name, data)

    def get(self, name: str, size: int) -> bytes:
        try:
            found = self._store.get(name)
        except FileNotFoundError as error:
            raise LookupError(name) from error
        return bytes(found.bytes()) if found.meta["size"] == size else b""

    def names(self, folder: str, after: str, limit: int) -> list[Entry]:
        start = f"{folder}/{after}" if after else None
        found = next(iter(self._store.list(f"{folder}/", offset=start, chunk_size=limit)), ())
        return [Entry(each["path"].partition("/")[2], each["last_modified"].timestamp()) for each in found]

    def delete(self, names: Sequence[str]) -> None:
        self._store.delete(list(names))


def bucket_of(url: str, namespace: str) -> Bucket:
    """The bucket that the setting `offload` names; each namespace has a folder in it. Raises InvalidOption."""
    place = f"{url.rstrip('/')}/{namespace}"
    return Folder(Path(unquote(place.removeprefix("file://")))) if url.startswith("file:") else Remote(place)


def headline(error: BaseException) -> str:
    """What it says first: the errors of libraries go on for pages."""
    return clean(str(error).partition("\n")[0] or type(error).__name__, LONGEST_ERROR)
