"""Which texts of a job are encrypted, and how each is bound to its place: its kind, and the job it belongs to.

Everything that an app's code writes is: arguments, results, checkpoints, errors and their tracebacks, log lines, what
`job.once` and `jobs.once` keep, signals, progress. Names are not, since stores find and count by them: tasks, queues,
flows, keys, `meta`; nor is what the engine or an operator says about a job.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from dataclasses import replace
from time import time
from typing import Any, Literal, TypeVar

import msgspec

from tenure.codecs import Codec
from tenure.core.lifecycle import Completed, Failed, Outcome, Snoozed
from tenure.core.logs import logger
from tenure.core.offloaded import elsewhere, is_offloaded
from tenure.core.sealed import ALTERED, ENCRYPTED, SEALED, is_sealed, why_sealed
from tenure.errors import Locked, StoreAway
from tenure.ports import (
    EDITS,
    AttemptView,
    Claimed,
    Draft,
    Edit,
    Input,
    JobView,
    Progress,
    SignalView,
    Status,
    Text,
    Update,
)
from tenure.stores.rules import check_text

#: What a text is. A value of one kind is refused where another is read.
Kind = Literal["payload", "result", "checkpoint", "error", "stage", "message", "log", "edits", "once", "signal", "note"]
V = TypeVar("V", JobView, Status)
_JSON: tuple[Kind, ...] = ("payload", "result", "checkpoint")
_TEXTS: tuple[Kind, ...] = ("error", "stage", "message")
_SEARCHED: tuple[Kind, ...] = ("payload", "result", "error")
_REPORTED: tuple[Kind, ...] = ("stage", "message", "checkpoint", "log")
ONCE = "once:"  #: how the keys of the notes of `jobs.once` begin: no other notes have texts of an app's code
_EMPTY = frozenset(("", "{}", "[]", '""', "null"))  #: they say nothing, so they are left as they are
_log = logger("tenure.store")
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class Seal:
    """Encrypts and decrypts with a codec. Without one it encrypts nothing, and shows people what is encrypted."""

    def __init__(self, codec: Codec | None) -> None:
        self.codec = codec

    def close(self, text: str, kind: Kind, owner: str, key: str = "") -> str:
        """The text as it is stored."""
        codec = self.codec
        if codec is None or text in _EMPTY:
            return text
        check_text(text)
        try:
            data = codec.encode(text.encode(), _about(kind, owner, key))
        except Exception as error:  # a codec is the program's own code: it may ask a key server
            raise StoreAway(f"the codec can't encrypt: {error!r}") from error
        encrypted = b2a_base64(data, newline=False)
        return f'{SEALED}{codec.key}:{encrypted.decode()}"'

    def open(self, text: str, kind: Kind, owner: str, key: str = "") -> str:
        """The text as it was written. One that can't be read stays sealed: `is_sealed`."""
        if not is_sealed(text) or self.codec is None:
            return text
        name, _, encrypted = text[len(SEALED) :].partition(":")
        try:
            data = a2b_base64(encrypted.removesuffix('"'), strict_mode=True)
            return self.codec.decode(data, _about(kind, owner, key), name).decode()
        except LookupError:
            return text
        except ValueError:
            return ALTERED
        except Exception as error:
            _log.warning("the codec can't decrypt: %r", error)  # as if the key were not here: it may work later
            return text

    def needed(self, text: str, kind: Kind, owner: str, key: str, what: str) -> str:
        """The text as it was written. Raises Locked if it can't be read."""
        opened = self.open(text, kind, owner, key)
        if is_sealed(opened):
            raise Locked(what, why_sealed(opened), altered=opened == ALTERED)
        return opened

    def _read(self, text: str, kind: Kind, owner: str, key: str = "") -> str:
        """With a codec, for programs, which handle what stays sealed; without one, for people, who see why it does."""
        return self.open(text, kind, owner, key) if self.codec else self._shown(text, kind, owner, key)

    def _shown(self, text: str, kind: Kind, owner: str, key: str = "") -> str:
        """For people: JSON in any case."""
        if is_offloaded(text):
            return f'"{elsewhere(text)}"'
        opened = self.open(text, kind, owner, key)
        return f'"{ENCRYPTED}{why_sealed(opened)}"' if is_sealed(opened) else opened

    def _told(self, text: str, kind: Kind, owner: str) -> str:
        """For people: a text that is not JSON."""
        opened = self.open(text, kind, owner)
        return f"{ENCRYPTED}{why_sealed(opened)}" if is_sealed(opened) else opened

    # ── what is written ──

    def draft(self, draft: Draft) -> Draft:
        return draft.but(payload=self.close(draft.payload, "payload", draft.id))

    def edit(self, job_id: str, edit: Edit) -> Edit:
        return Edit(self.close(edit.payload, "payload", job_id), self._meta(job_id, edit.meta))

    def _meta(self, job_id: str, meta: str) -> str:
        """The user's own entries as they are; the earlier arguments of the job encrypted."""
        if EDITS not in meta:
            return meta
        named = _decode(meta, type=dict[str, str])
        return _encode({**named, EDITS: self.close(named[EDITS], "edits", job_id)}).decode()

    def outcome(self, job_id: str, outcome: Outcome) -> Outcome:
        match outcome:
            case Completed(result=result):
                return Completed(self.close(result, "result", job_id))
            case Failed(error=error):
                return replace(outcome, error=self.close(error, "error", job_id))
            case Snoozed(reason=reason, ours=False):
                return replace(outcome, reason=self.close(reason, "error", job_id))
            case _:
                return outcome

    def report(self, report: Progress) -> Progress:
        closed: dict[str, Any] = {}
        for kind in _REPORTED:
            text = getattr(report, kind)
            if text is not None:
                closed[kind] = self.close(text, kind, report.lease.job_id)
        return replace(report, **closed)

    def note(self, key: str, text: str | None) -> str | None:
        """The record of `jobs.once`, whose result is encrypted."""
        value, record = _result_in(text)
        return text if value is None else _with_result(record, self.close(value, "note", key))

    def closed(self, text: Text, value: str) -> str:
        """The value as it is stored in the place of this text."""
        match text.place:
            case "meta":
                return self._meta(text.owner, value)
            case "note":
                return self.note(text.owner, value) or ""
            case "attempt":
                return self.close(value, "error", text.owner)
            case "once" | "signal" as kind:
                return self.close(value, kind, text.owner, text.key)
            case kind:
                return self.close(value, kind, text.owner)

    def opened(self, text: Text) -> str:
        """The value of this text as it was written; what can't be read stays sealed."""
        place, owner, key, value = text
        match place:
            case "meta":
                named = _decode(value, type=dict[str, str])
                return _encode({**named, EDITS: self.open(named[EDITS], "edits", owner)}).decode()
            case "note":
                return self.shown_note(owner, value)
            case "attempt":
                return self.open(value, "error", owner)
            case "once" | "signal":
                return self.open(value, place, owner, key)
            case _:
                return self.open(value, place, owner)

    @staticmethod
    def part(text: Text) -> str:
        """The encrypted part of this text: in most places, all of it."""
        match text.place:
            case "meta":
                return _decode(text.value, type=dict[str, str])[EDITS]
            case "note":
                return _result_in(text.value)[0] or ""
            case _:
                return text.value

    # ── what is read ──

    def claimed(self, claimed: Claimed) -> Claimed:
        """For its worker, which looks at what could not be read before it runs anything."""
        payload, checkpoint = claimed.payload, claimed.checkpoint
        if is_sealed(payload):
            claimed = claimed._replace(payload=self.open(payload, "payload", claimed.id))
        if checkpoint is not None and is_sealed(checkpoint):
            claimed = claimed._replace(checkpoint=self.open(checkpoint, "checkpoint", claimed.id))
        return claimed

    def view(self, job: JobView) -> JobView:
        shown = self._fields(job)
        for kind in _JSON:
            text = getattr(job, kind)
            if text is not None and (is_sealed(text) or is_offloaded(text)):
                shown[kind] = self._shown(text, kind, job.id)
        if EDITS in job.meta:
            shown["meta"] = {**job.meta, EDITS: self.open(job.meta[EDITS], "edits", job.id)}
        return replace(job, **shown) if shown else job

    def searched(self, job: JobView) -> JobView:
        """What a search compares: a text that can't be read here is empty, and not what people are told instead."""
        read: dict[str, Any] = {}
        for kind in _SEARCHED:
            text = getattr(job, kind)
            if text is not None and (is_sealed(text) or is_offloaded(text)):
                read[kind] = self._compared(text, kind, job.id)
        return replace(job, **read) if read else job

    def _compared(self, text: str, kind: Kind, owner: str) -> str:
        opened = self.open(text, kind, owner)
        return "" if is_sealed(opened) or is_offloaded(opened) else opened

    def _fields(self, job: JobView | Status) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for kind in _TEXTS:
            text = getattr(job, kind)
            if text is not None and is_sealed(text):
                shown[kind] = self._told(text, kind, job.id)
        return shown

    def update(self, update: Update) -> Update:
        status, result = update.status, update.result
        if status is not None and (shown := self._fields(status)):
            status = replace(status, **shown)
        if result is not None and is_sealed(result):
            result = self._read(result, "result", update.id)
        error = None if update.status is None else update.status.error
        unread = error is not None and is_sealed(error) and is_sealed(self.open(error, "error", update.id))
        return update._replace(status=status, result=result, unread=error if unread and self.codec else None)

    def attempt(self, view: AttemptView) -> AttemptView:
        return replace(view, error=self._told(view.error, "error", view.job_id)) if is_sealed(view.error) else view

    def log(self, job_id: str, text: str) -> str:
        opened = self.open(text, "log", job_id)
        if not is_sealed(opened):
            return opened
        return _encode(
            {"dropped": 0, "lines": [(round(time() * 1000), "info", self._told(text, "log", job_id))]}
        ).decode()

    def input(self, each: Input) -> Input:
        result, error = each.result, each.error
        if result is not None and is_sealed(result):
            each = each._replace(result=self._read(result, "result", each.parent))
        if error is not None and is_sealed(error):
            opened = self.open(error, "error", each.parent)
            each = each._replace(error=opened if self.codec else self._told(error, "error", each.parent))
        return each

    def signal(self, job_id: str | None, view: SignalView) -> SignalView:
        return view._replace(value=self._read(view.value, "signal", job_id or "", view.key))

    def opened_note(self, key: str, text: str | None) -> str | None:
        """The record of `jobs.once`. Raises Locked."""
        value, record = _result_in(text)
        if value is None or not is_sealed(value):
            return text
        return _with_result(record, self.needed(value, "note", key, "", f"the result of {key}"))

    def shown_note(self, key: str, text: str) -> str:
        """The record of `jobs.once`, with its result encrypted if it can't be read."""
        value, record = _result_in(text)
        return text if value is None else _with_result(record, self.open(value, "note", key))


def _about(kind: Kind, owner: str, key: str) -> str:
    return f"{kind} {owner} {key}" if key else f"{kind} {owner}"


def _result_in(text: str | None) -> tuple[str | None, Mapping[str, Any]]:
    """The result in a record of `jobs.once`, if there is one yet, and the record."""
    record: dict[str, Any] = {} if text is None else _decode(text)
    return record.get("value"), record


def _with_result(record: Mapping[str, Any], value: str) -> str:
    return _encode({**record, "value": value}).decode()
