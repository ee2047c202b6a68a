"""`Ended`: how a job ended: completed, dead or cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, cast

from tenure.core.lifecycle import ENDED, State
from tenure.errors import InvalidOption, JobFailed, TenureError
from tenure.tasks.handle import AppPort, JobHandle

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


class Ended(Generic[R_co]):
    """How a job ended. Example: `def clean(report: Ended[Report]) -> None: ...`, given `step.ended` of a flow.

    `state` is 'completed', 'dead' or 'cancelled', `error` its last error. A test makes one of its own:
    `clean.call(Ended("dead", error="no space left"))`.
    """

    __slots__ = ("_app", "_decode", "_id", "_value", "error", "state")

    def __init__(
        self,
        state: State | str,
        *,
        value: R_co | None = None,
        error: str = "",
        id: str | None = None,  # noqa: A002
        app: AppPort | None = None,
        decode: Callable[[str], R_co] | None = None,
    ) -> None:
        if state not in tuple(ENDED):
            raise InvalidOption(f"Ended: expected 'completed', 'dead' or 'cancelled', got {state!r}")
        self.state = State(state)
        self.error = error
        self._value = value
        self._id, self._app, self._decode = id, app, decode

    def __repr__(self) -> str:
        return f"Ended({self.state.value!r})" if self.ok else f"Ended({self.state.value!r}, error={self.error!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ended):
            return NotImplemented
        return (self.state, self._value, self.error) == (other.state, other._value, other.error)  # pyright: ignore[reportUnknownMemberType]

    __hash__ = None  # type: ignore[assignment]

    @property
    def ok(self) -> bool:
        """Did it complete?"""
        return self.state is State.COMPLETED

    @property
    def value(self) -> R_co:
        """Its result. Raises JobFailed unless it is `ok`."""
        if not self.ok:
            raise JobFailed(self._id or "", self.state, self.error)
        return cast("R_co", self._value)

    @property
    def handle(self) -> JobHandle[R_co]:
        """The handle of the job. Raises TenureError for one that a test has made."""
        if self._app is None or self._id is None or self._decode is None:
            raise TenureError("this Ended was made by hand, not by a job: it has no handle")
        return JobHandle(self._app, self._id, created=False, decode=self._decode)

    def attach(self, app: AppPort) -> None:
        """Called by the worker: the app whose client its handle uses."""
        self._app = app

    def plain(self) -> dict[str, object]:
        """The form in which it is stored as an argument."""
        return {"state": self.state.value, "value": self._value, "error": self.error, "id": self._id}
