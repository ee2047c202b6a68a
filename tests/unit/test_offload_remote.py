"""Large values in a bucket of S3: a server that speaks its protocol, and one that does not answer as it should."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

import pytest

from conformance.factories import draft, look, put
from tenure.errors import BucketAway, NotFetched
from tenure.ports import Text
from tenure.stores.memory import MemoryStore
from tenure.stores.offload import OffloadStore, bucket
from tenure.stores.offload.bucket import Bucket, Folder, bucket_of
from unit.test_offload import GRACE, LARGEST, json_of

NAMES = [f"values/{group}/{n}" for group in ("0a", "0b", "ff") for n in range(3)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server, with the bucket `jobs`."""
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    urlopen(Request(f"http://{host}:{port}/jobs", method="PUT")).close()
    yield f"http://{host}:{port}"
    running.stop()


def at(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.thorough)])
def somewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Bucket:
    if request.param == "folder":
        return bucket_of(f"file://{tmp_path}/a%20b", "shop")
    at(monkeypatch, request.getfixturevalue("server"))
    return bucket_of("s3://jobs/values of/", tmp_path.name)


def test_a_bucket_keeps_what_its_port_promises(somewhere: Bucket) -> None:
    for name in NAMES:
        somewhere.put(name, name.encode())
    somewhere.put(NAMES[0], b"again")
    somewhere.put("unnamed/0a/0", b"")

    assert somewhere.get(NAMES[0], 5) == b"again"
    assert somewhere.get(NAMES[0], 4) != b"again"[:4]
    for name in ("values/0a/9", "values/9/9"):
        with pytest.raises(LookupError):
            somewhere.get(name, 1)

    pages, after = list[list[str]](), ""
    while page := somewhere.names("values", after, 2):
        pages.append([each.name for each in page])
        after = page[-1].name
    assert [f"values/{name}" for page in pages for name in page] == NAMES
    assert max(map(len, pages)) <= 2
    assert somewhere.names("nothing", "", 2) == []

    somewhere.delete([*NAMES[:8], "values/0a/9"])
    assert [each.name for each in somewhere.names("values", "", 100)] == ["ff/2"]


@pytest.mark.thorough
def test_a_walk_of_the_sweep_is_the_same_there(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, server)
    remote = bucket_of("s3://jobs/swept", "tenure")
    store = OffloadStore(MemoryStore(), remote, LARGEST, grace=0.0)
    ids = [put(store, payload=json_of(5000 + n)) for n in range(5)]
    store.delete(ids[:2])

    assert store._sweep.whole(2) == (5, 2, 0)
    assert store._sweep.whole(2).deleted == 2
    # In the order of their ids, not of their names: a name begins with the last two digits of its id.
    assert sorted(each.name[3:39] for each in remote.names("values", "", 9)) == sorted(ids[2:])
    for job_id in ids[2:]:
        job = look(store, job_id)
        assert store.fetch(Text("payload", job_id, "", job.payload)).startswith('"xxx')
    store.close()


class Misbehaving(BaseHTTPRequestHandler):
    """Answers every request with `answer`; None: not at all, until the test is over."""

    answer: tuple[int, bytes] | None = (200, b"")
    over = threading.Event()

    def _do(self) -> None:
        if self.answer is None:
            self.over.wait(60)
            return
        status, body = self.answer
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 12:00:00 GMT")
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do  # noqa: N815

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def misbehaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Misbehaving]]:
    class Own(Misbehaving):
        over = threading.Event()

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    at(monkeypatch, f"http://127.0.0.1:{listening.server_port}")
    yield Own
    Own.over.set()
    listening.shutdown()
    thread.join()
    listening.server_close()


BUSY = b"<Error><Code>SlowDown</Code></Error>"


@pytest.mark.parametrize(
    ("answer", "writes", "reads"),
    [
        ((503, BUSY), "503", "503"),
        ((403, b"<Error><Code>AccessDenied</Code></Error>"), "privileges", "privileges"),
        ((404, b"<Error><Code>NoSuchBucket</Code></Error>"), "not found", "has no values/"),
        ((507, b""), "507", "507"),
        ((200, b"<html>log in</html>"), ".", "its hash differs"),
        ((200, json_of(5000).replace("x", "y").encode()), ".", "its hash differs"),
        (None, ".", "."),
    ],
    ids=["too busy", "no access", "no bucket", "full", "a portal", "another object of this size", "silent"],
)
def test_a_server_that_does_not_answer_as_it_should(
    misbehaving: type[Misbehaving],
    answer: tuple[int, bytes] | None,
    writes: str,
    reads: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    misbehaving.answer, beneath = (200, b""), MemoryStore()
    before = OffloadStore(beneath, bucket_of("s3://jobs", "tenure"), LARGEST, GRACE)
    job = look(before, put(before, payload=json_of(5000)))
    before.close()

    misbehaving.answer = answer
    if answer is None:
        monkeypatch.setattr(bucket, "CALL_SECONDS", 1.0)
    store = OffloadStore(beneath, bucket_of("s3://jobs", "tenure"), LARGEST, GRACE)
    with pytest.raises(NotFetched, match=reads) as refused:
        store.fetch(Text("payload", job.id, "", job.payload))
    assert "\n" not in str(refused.value)
    if answer is None or answer[0] != 200:
        with pytest.raises(BucketAway, match=writes) as away:
            store.enqueue([draft(payload=json_of(5001))])
        assert "\n" not in str(away.value)
    store.close()


def test_a_folder_that_can_not_be_written_says_so(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    store = OffloadStore(MemoryStore(), Folder(tmp_path / "file" / "values"), LARGEST, GRACE)

    with pytest.raises(BucketAway, match="File exists"):
        put(store, payload=json_of(5000))
    store.close()
