"""`python -m tests.model [NAME]…`: each search with every rule, then the story that each missing rule lets happen."""

from __future__ import annotations

import sys
from time import perf_counter

from .models import MODELS


def main(names: list[str]) -> int:
    unknown = set(names) - {model.name for model in MODELS}
    if unknown:
        print(f"no model {', '.join(sorted(unknown))}; there are: {', '.join(model.name for model in MODELS)}")
        return 2
    wrong = 0
    for model in MODELS:
        if names and model.name not in names:
            continue
        started = perf_counter()
        whole = model.whole()
        print(f"\n══ {model.name}, with every rule ({perf_counter() - started:.1f} s)")
        for report in whole:
            print(report)
            wrong += bool(report.broken)
        for rule in model.rules:
            report = model.without(rule)
            wrong += not report.broken
            print(f"\nwithout {rule} ({report.name}):\n{report}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
