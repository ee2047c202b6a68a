"""The metrics of /metrics, under their names, for OpenTelemetry: a worker's counters, and what a store holds.

Their texts come from operations/metrics.py, imported at the first use only, as it imports Prometheus's library. What a
supervisor alone knows, such as deaths of workers, is in /metrics only: it has no SDK.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from tenure.app import backends
from tenure.worker.tally import BOUNDS

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

    from tenure.app.app import Tenure

Counts = Mapping[tuple[str, ...], int]  #: by what was counted and its labels, as a `Tally` has them
COUNTED = {
    "tenure_claims_total": "claims",
    "tenure_outcomes_total": "outcomes",
    "tenure_refused_writes_total": "refused",
}


def meter(provider: MeterProvider | None) -> Meter:
    return metrics.get_meter("tenure", meter_provider=provider)


class Counters:
    """What the workers of this process have counted since they started."""

    def __init__(self, provider: MeterProvider | None) -> None:
        self._given, self._meter = provider, meter(provider)
        self._reads: list[Callable[[], Counts]] = []
        self.attempt_seconds = self._meter.create_histogram(
            "tenure_attempt_seconds",
            "s",
            "How long the code of an attempt ran.",
            explicit_bucket_boundaries_advisory=BOUNDS["attempt"],
        )

    @property
    def provider(self) -> MeterProvider:
        return self._given or metrics.get_meter_provider()

    def add(self, read: Callable[[], Counts]) -> None:
        """Include these counts from now on."""
        self._reads.append(read)
        if len(self._reads) == 1:
            from tenure.operations.metrics import METRICS

            for name, what in COUNTED.items():
                observed = self._observed(what, METRICS[name].labels)
                self._meter.create_observable_counter(name, [observed], description=METRICS[name].help)

    def _observed(self, what: str, labels: tuple[str, ...]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterable[Observation]:
            total = Counter[tuple[str, ...]]()
            for read in self._reads:
                total.update(read())
            for (kind, *values), number in total.items():
                if kind == what:
                    yield Observation(number, dict(zip(labels, values, strict=True)))

        return observed


def observe_store(jobs: Tenure, *, meter_provider: MeterProvider | None = None) -> None:
    """Export what this app's store holds, as gauges: jobs by state and queue, live workers, open incidents.

    Call it in one process, or each exports the same numbers. Example: `observe_store(jobs)` in a web app. The store is
    read when the SDK collects, on a connection of its own. While it is unavailable the gauges have no values.
    """
    from tenure.operations.metrics import METRICS, Reader

    reader, instruments = Reader(backends.connect), meter(meter_provider)

    def observed(name: str, labels: tuple[str, ...]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            held = reader.read(jobs.settings)
            for family in () if held is None else held.families():
                if family.name == name:
                    for sample in family.samples:
                        yield Observation(sample.value, {label: sample.labels[label] for label in labels})

        return observe

    for each in METRICS.values():
        if each.source == "store":
            instruments.create_observable_gauge(each.name, [observed(each.name, each.labels)], description=each.help)
