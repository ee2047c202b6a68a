"""Draw how a git repository grew: python examples/code_evolution.py REPO. The code is in `tenure.demo`.

Or as a worker and its client: tenure worker examples/code_evolution.py, and tenure enqueue code_evolution repo=…
"""

from __future__ import annotations

from tenure.demo.code_evolution import jobs, main

__all__ = ["jobs"]

if __name__ == "__main__":
    raise SystemExit(main())
