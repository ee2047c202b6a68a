"""`python -m tenure.cli.supervise ORDER`: a supervisor process. `tenure worker` becomes it."""

from __future__ import annotations

import json
import os
import sys
import traceback

from tenure.app.processes import supervise
from tenure.cli import logs

if __name__ == "__main__":
    code = 1
    try:
        code = supervise(json.loads(sys.argv[1]), logs.follow)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # the interpreter would wait without limit for the threads that deliver alerts
