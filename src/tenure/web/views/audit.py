"""The audit trail: every action of an operator. For admins."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, NamedTuple

from tenure.operations.audit import Entry
from tenure.web.pages import Action, Page, View
from tenure.web.security import Problem

_SHOWN = 50
_JOB = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Row(NamedTuple):
    """An entry, its job, and the page of its subject, if there are any."""

    entry: Entry
    job: str | None
    path: str | None


def look(view: View) -> dict[str, Any]:
    if not view.user.may("admin"):
        raise Problem(HTTPStatus.FORBIDDEN, "Not allowed", f"the audit trail is for admins; you are {view.user.role}")
    cursor = view.query.get("cursor") or None
    found = view.site.memo.get(("audit", cursor), lambda: view.admin.audit(limit=_SHOWN, cursor=cursor), fresh=0.5)
    return {"rows": [_row(each) for each in found.entries], "later": cursor is not None, "cursor": found.cursor}


def _row(entry: Entry) -> Row:
    kind, _, verb = entry.action.partition(".")
    job = _JOB.fullmatch(entry.outcome.removeprefix("job ")) or _JOB.fullmatch(entry.subject)
    path = {"queue": "/queues", "schedule": f"/schedules/{entry.subject}"}.get(kind)
    return Row(entry, job[0] if job and verb != "delete" else None, None if verb == "remove" else path)


PAGES: list[Page] = [Page("/audit", "audit.html", look, every=1.0, title="Audit")]
ACTIONS: list[Action] = []
