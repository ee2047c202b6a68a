"""`python -m tenure.cli.child ORDER HANDLES…`: a worker process. Started by a supervisor only."""

from __future__ import annotations

import json
import sys

from tenure.app.processes import work
from tenure.cli import logs

if __name__ == "__main__":
    order, *handles = sys.argv[1:]
    sys.exit(work(json.loads(order), [int(handle) for handle in handles], logs.follow))
