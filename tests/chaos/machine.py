"""A machine that fails: its power is cut, its disk is full or broken, its clock is set. For one server, or one file.

A power cut does what `kill -9` does not: what a process has written and not synced is gone. Here a sync puts a copy of
the file on a *platter*, and a cut takes every file back to that. What is created, renamed or deleted stays so at once.

* PostgreSQL and Valkey are started with `machine.c` before their libc: `FailingPostgres`, `FailingValkey`.
  It is compiled when first asked for, so these need a C compiler.
* SQLite is opened through `FailingDisk`, a VFS in Python. Processes that have `failing_disk` on their PYTHONPATH, and
  TENURE_TEST_DISK in their environment, open theirs through it too.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import mmap
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import apsw

from servers import Postgres, ServerError, Valkey, free_port

HERE = Path(__file__).parent
BLOCK = 1 << 16


# ── Of a server ─────────────────────────────────────────────────────────────────────────────────────────────────


class Machine:
    """The machine that one server runs on. `folder` is for its own files, `disk` the folder with the server's data."""

    def __init__(self, folder: Path, disk: Path) -> None:
        self._disk, self._platter = disk, folder / "platter"
        self._platter.mkdir(parents=True)
        self._platter.chmod(0o777)  # the server may be another user's
        page = folder / "page"
        page.write_bytes(bytes(mmap.PAGESIZE))
        page.chmod(0o666)
        with page.open("r+b") as shared:
            self._page = mmap.mmap(shared.fileno(), 0)
        self.before = (
            "env",
            f"LD_PRELOAD={_compiled()}",
            f"TENURE_MACHINE={page}",
            f"TENURE_DISK={disk}",
            f"TENURE_PLATTER={self._platter}",
        )
        for file in self._files():
            kept = self._platter / _inode(file)
            shutil.copyfile(file, kept)
            kept.chmod(0o666)

    def set_clock(self, seconds: float) -> None:
        """From now on its wall clock is off by this much."""
        self._tell(0, int(seconds * 1e9))

    @contextmanager
    def full(self) -> Generator[None]:
        """No file on its disk grows; what is there can be written over."""
        self._tell(1, 1)
        try:
            yield
        finally:
            self._tell(1, 0)

    @contextmanager
    def broken(self) -> Generator[None]:
        """No sync of its disk succeeds."""
        self._tell(2, 1)
        try:
            yield
        finally:
            self._tell(2, 0)

    @property
    def refused(self) -> int:
        """How many writes and syncs it has refused."""
        return int(struct.unpack_from("=q", self._page, 24)[0])

    def revert(self) -> int:
        """Its power was cut: take each file back to its last sync. Returns how many bytes it lost. Nothing may run."""
        lost = 0
        for file in self._files():
            kept = self._platter / _inode(file)
            safe = kept.read_bytes() if kept.exists() else b""
            there = file.read_bytes()
            if there != safe:
                lost += max(abs(len(there) - len(safe)), 1)
                with file.open("r+b") as same:  # its inode is its name on the platter
                    same.truncate(0)
                    same.write(safe)
        return lost

    def _tell(self, place: int, value: int) -> None:
        struct.pack_into("=q", self._page, 8 * place, value)

    def _files(self) -> Iterator[Path]:
        return (path for path in self._disk.rglob("*") if path.is_file() and not path.is_symlink())


def _inode(path: Path) -> str:
    """As `machine.c` names it: with the file's birth time, as inode numbers are reused. os.stat does not tell it."""
    facts = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).statx(-100, os.fsencode(path), 0, 0xFFF, facts):
        raise OSError(ctypes.get_errno(), "statx", str(path))
    seconds, nanoseconds = struct.unpack_from("=qI", facts, 80)
    return f"{struct.unpack_from('=Q', facts, 32)[0]}-{seconds}-{nanoseconds}"


@functools.cache
def _compiled() -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ServerError(
            "a server on a failing machine needs a C compiler, and there is no cc, gcc or clang: install one "
            "(on Debian: apt install gcc libc6-dev)"
        )
    folder = Path(tempfile.mkdtemp(prefix="tenure-machine-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    made = folder / "machine.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(HERE / "machine.c"), "-ldl"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ServerError(f"{compiler} can't compile machine.c: {run.stderr.strip()}")
    return made


def start_again(server: FailingPostgres | FailingValkey) -> None:
    """Start a server that has ended because of its fault."""
    server._ended()
    server.start()


class FailingPostgres(Postgres):
    """PostgreSQL on a machine of its own."""

    @functools.cached_property
    def machine(self) -> Machine:
        return Machine(self.folder / "machine", self.folder / "data")

    def cut_power(self) -> int:
        """How many unsynced bytes were lost. It can be started again."""
        self.kill()
        lost = self.machine.revert()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)  # it is never synced, and refused when empty
        return lost

    def _command(self) -> list[str]:
        return [*self.machine.before, *super()._command()]


class FailingValkey(Valkey):
    """Valkey on a machine of its own."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(settings)

    @functools.cached_property
    def machine(self) -> Machine:
        return Machine(self.folder / "machine", self.folder / "appendonlydir")

    def cut_power(self) -> int:
        """How many unsynced bytes were lost. It can be started again."""
        self.kill()
        return self.machine.revert()

    def _command(self) -> list[str]:
        return [*self.machine.before, *super()._command()]


def replica(server: Postgres) -> Path:
    """What a replica has got by this moment, and nothing later. Its folder lives as long as the server's."""
    copy = server.folder / "replica"
    program = str(server._programs / "pg_basebackup")
    server._run(program, f"--dbname={server.url()}", "--pgdata", str(copy), "--checkpoint=fast", "--no-sync")
    return copy


def put_in_its_place(server: Postgres, copy: Path) -> None:
    """The server is gone; once it is started again, that replica is the primary, at its address."""
    shutil.rmtree(server.folder / "data")
    copy.rename(server.folder / "data")


@contextmanager
def pgbouncer(server: Postgres) -> Generator[str]:
    """The URL of this server through a pgbouncer of ours, which gives each transaction another session."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        raise ServerError("there is no pgbouncer on PATH: install it (on Debian: apt install pgbouncer)")
    there, port = urlsplit(server.url()), free_port()
    config, said = server.folder / "pgbouncer.ini", server.folder / "pgbouncer.log"
    config.touch(0o600)
    config.write_text(
        f"""
[databases]
postgres = host=127.0.0.1 port={there.port} dbname=postgres user={there.username} password={there.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
"""
    )
    user = server._user  # pgbouncer refuses to run as root
    if user is not None:
        os.chown(config, user.pw_uid, user.pw_gid)
    with said.open("wb") as log:
        pooler = subprocess.Popen(
            [program, str(config)],
            stdout=log,
            stderr=log,
            cwd=server.folder,
            user=user and user.pw_uid,
            group=user and user.pw_gid,
            extra_groups=user and [],
        )
    try:
        while not _listens(port):
            if pooler.poll() is not None:
                raise ServerError(f"pgbouncer ended: {said.read_text()}")
            time.sleep(0.02)
        yield there._replace(netloc=f"tenure@127.0.0.1:{port}", path="/postgres").geturl()
    finally:
        pooler.kill()
        pooler.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# ── Of SQLite ───────────────────────────────────────────────────────────────────────────────────────────────────


class FailingDisk(apsw.VFS):
    """The default VFS of this process until it is closed. `platter` is a folder that all processes of a test share."""

    NAME = "failing"

    def __init__(self, platter: Path) -> None:
        self.platter = platter
        super().__init__(self.NAME, "unix", makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        (self.platter / Path(filename).name).unlink(missing_ok=True)

    @contextmanager
    def broken(self) -> Generator[None]:
        """No sync succeeds."""
        sign = self.platter / "broken"
        sign.touch()
        try:
            yield
        finally:
            sign.unlink()

    def cut(self) -> dict[str, bytes]:
        """What is durable at this moment. All writers are dead."""
        return {file.name: file.read_bytes() for file in self.platter.iterdir() if file.name not in {"broken", "lock"}}

    @staticmethod
    def revert(database: Path, safe: Mapping[str, bytes]) -> None:
        """The power comes back: this is what is there then. No process may have it open."""
        for file in (database, database.with_name(f"{database.name}-wal")):
            file.write_bytes(safe.get(file.name, b""))
        database.with_name(f"{database.name}-shm").unlink(missing_ok=True)


class _File(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(path).name if path else ""
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if not self._name:
            return super().xSync(flags)
        if (self._disk.platter / "broken").exists():
            raise apsw.IOError("this disk is broken")
        with (self._disk.platter / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._keep(self._disk.platter / self._name)
        super().xSync(flags)
        return None

    def _keep(self, path: Path) -> None:
        """Read before the sync begins: what is there then is safe when the sync returns, and nothing else need be."""
        path.touch()
        size = self.xFileSize()
        with path.open("r+b") as kept:
            for at in range(0, size, BLOCK):
                now = self.xRead(min(BLOCK, size - at), at)
                kept.seek(at)
                if kept.read(len(now)) != now:
                    kept.seek(at)
                    kept.write(now)
            kept.truncate(size)
