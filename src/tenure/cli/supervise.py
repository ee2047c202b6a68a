"""`python -m tenure.cli.supervise ORDER`: a supervisor process. `tenure worker` becomes it."""

from __future__ import annotations

import json
import sys

from tenure.app import supervise
from tenure.cli import logs

if __name__ == "__main__":
    sys.exit(supervise(json.loads(sys.argv[1]), logs.follow))
