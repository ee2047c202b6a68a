"""The promises of `docs/delivery.md`, searched: no story within the bounds breaks one, and no rule is there in vain."""

from __future__ import annotations

import pytest

from .models import MODELS
from .search import Model

RULES = [pytest.param(model, rule, id=f"{model.name}-{rule}") for model in MODELS for rule in model.rules]


@pytest.mark.timeout(600)  # it is all computing, which a busy machine does slowly
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=model.name, marks=() if model.name == "ownership" else pytest.mark.thorough)
        for model in MODELS
    ],
)
def test_the_protocol_holds(model: Model) -> None:
    reports = model.whole()

    for report in reports:
        print(report)
        assert not report.broken, f"{report.name}:\n{report}"
    seen = frozenset[object]().union(*(report.seen for report in reports))
    assert model.sights <= seen, "the search never met some of these: it proves nothing about them"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("model", "rule"), RULES)
def test_removing_any_guard_gives_a_counterexample(model: Model, rule: str) -> None:
    report = model.without(rule)

    print(f"without {rule} ({report.name}):\n{report}")
    assert report.broken, f"nothing breaks without {rule}: drop the rule, or widen the search until it matters"
