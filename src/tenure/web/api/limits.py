"""Limits: what holds, their keys and the jobs that have the places; set, reset, pause, resume.

Names are passed in the query or the body: a key is made of arguments, so it may have any character, also a slash.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tenure.web.api.common import Operator, Reader, can, operation_id
from tenure.web.models import limits as models
from tenure.web.models.values import Changed, Text

router = APIRouter(prefix="/limits", tags=["limits"], generate_unique_id_function=operation_id)
OfLimit = Annotated[Text | None, Query(description="Only the keys of this limit.")]
Number = Annotated[int, Query(ge=1, le=1000, description="The most to return.")]


@router.get("")
def get_limits(
    caller: Reader, retired: Annotated[bool, Query(description="Also those that no app declares any more.")] = False
) -> models.Limits:
    """All limits, by name, and how much their keys are waited for."""
    usage = caller.site.usage()
    found = caller.site.memo.get(("limits", retired), lambda: caller.admin.limits.all(retired=retired), fresh=0.5)
    sums = usage.sums
    return models.Limits(limits=[models.Limit.of(each, sums) for each in found], complete=usage.complete)


@router.get("/keys", responses=can(404))
def get_keys(
    caller: Reader,
    of: OfLimit = None,
    start: Annotated[
        str, Query(max_length=200, pattern=r"^[^\x00]*$", description="`next` of the previous page.")
    ] = "",
    limit: Number = 50,
) -> models.Keys:
    """The keys that are in use, paused or set, or of which a job began a short while ago; by name."""
    found = caller.admin.limits.keys(of, start=start, number=limit)
    more = found[-1].key if len(found) == limit else None
    return models.Keys(keys=[models.Key.of(each) for each in found], next=more)


@router.get("/keys/waited", responses=can(404))
def get_most_waited_keys(caller: Reader, of: OfLimit = None, limit: Number = 20) -> models.MostWaited:
    """The keys for which most jobs wait."""
    usage = caller.site.usage(of)
    return models.MostWaited(keys=[models.Key.of(each) for each in usage.keys[:limit]], complete=usage.complete)


@router.get("/key", responses=can(404))
def get_key(caller: Reader, name: Annotated[models.LimitName, Query()]) -> models.KeyDetail:
    """A key, the jobs that have its places, and those that come next. 422 for a limit with many keys."""
    return models.KeyDetail.of(caller.admin.limits.key(name))


@router.post("/set", responses=can(404))
def set_limit(caller: Operator, to: models.SetLimit) -> models.Holds:
    """Replace the declared bounds of a key, or a limit, also after a deploy."""
    before = caller.admin.limits.bounds(to.name)
    bounds = caller.admin.limits.set(to.name, concurrency=to.concurrency, rate=to.rate, burst=to.burst)
    caller.site.acted()
    return models.Holds(changed=bounds != before, bounds=models.Allowed.of(bounds))


@router.post("/reset", responses=can(404))
def reset_limit(caller: Operator, what: models.Named) -> models.Holds:
    """Restore the declared bounds."""
    changed = caller.admin.limits.reset(what.name)
    caller.site.acted()
    return models.Holds(changed=changed, bounds=models.Allowed.of(caller.admin.limits.bounds(what.name)))


@router.post("/pause", responses=can(404))
def pause_limit(caller: Operator, how: models.PauseLimit) -> Changed:
    """No job gets a place of this key, or of any key of this limit; those that have one go on."""
    caller.admin.limits.pause(how.name, how.length, how.why)
    caller.site.acted()
    return Changed(changed=True, says="paused" + caller.admin.limits.besides(how.name))


@router.post("/resume", responses=can(404))
def resume_limit(caller: Operator, what: models.Named) -> Changed:
    """End the pause of a key, or of a limit; keys of a limit that are paused themselves stay so."""
    changed = caller.admin.limits.resume(what.name)
    caller.site.acted()
    says = "resumed" if changed else "it was not paused"
    return Changed(changed=changed, says=says + caller.admin.limits.besides(what.name))
