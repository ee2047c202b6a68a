"""Every contract between the engine and the outside: `Store` (the source of truth) and `Notifier` (the doorbell).

The ports are synchronous and safe to call from several threads: a worker calls them from two threads of its own, the
supervisor, the CLI and a plain `enqueue()` call them directly. Values are frozen; times are aware UTC datetimes by
the *store's* clock, ids are canonical UUID text, durations are seconds, payloads and results are JSON text.

Every verb of an owner carries a `Lease` and says whether it landed. A store maps its driver's errors once, at this
boundary: `StoreAway` (try again later), `BadData` (one value is at fault), `StoreError` (anything else).
"""

from __future__ import annotations

from tenure.ports.jobs import (
    BATCH_BYTES,
    NO_DELAYS,
    NO_EDITS,
    NONE_KNOWN,
    Answer,
    Awaited,
    Busy,
    Claimed,
    Draft,
    Edit,
    Enqueued,
    JobStore,
    Landed,
    Links,
    NotLanded,
    OnceRecord,
    Owned,
    Progress,
    Promoted,
    Retried,
    may_be_cut,
)
from tenure.ports.notifier import ANY, Listener, Notifier, Permit, Permits, Ring
from tenure.ports.reads import (
    GONE,
    AttemptView,
    Ended,
    EndedJob,
    Filter,
    JobView,
    Page,
    QueueView,
    ReadStore,
    Status,
    Update,
    WorkerView,
)
from tenure.ports.store import Capabilities, Store
from tenure.ports.waiting import (
    MOST_EDGES,
    PROTOCOL,
    Admitted,
    FlowView,
    Input,
    SignalView,
    WaitStore,
)
from tenure.ports.workers import Hung, Rescued, Runner, WorkerIdentity, WorkerStore

__all__ = [
    "ANY",
    "BATCH_BYTES",
    "GONE",
    "MOST_EDGES",
    "NONE_KNOWN",
    "NO_DELAYS",
    "NO_EDITS",
    "PROTOCOL",
    "Admitted",
    "Answer",
    "AttemptView",
    "Awaited",
    "Busy",
    "Capabilities",
    "Claimed",
    "Draft",
    "Edit",
    "Ended",
    "EndedJob",
    "Enqueued",
    "Filter",
    "FlowView",
    "Hung",
    "Input",
    "JobStore",
    "JobView",
    "Landed",
    "Links",
    "Listener",
    "NotLanded",
    "Notifier",
    "OnceRecord",
    "Owned",
    "Page",
    "Permit",
    "Permits",
    "Progress",
    "Promoted",
    "QueueView",
    "ReadStore",
    "Rescued",
    "Retried",
    "Ring",
    "Runner",
    "SignalView",
    "Status",
    "Store",
    "Update",
    "WaitStore",
    "WorkerIdentity",
    "WorkerStore",
    "WorkerView",
    "may_be_cut",
]
