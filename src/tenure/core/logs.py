"""The engine's loggers. A program's handler or filter that raises fails the line, and never the duty that logs it."""

from __future__ import annotations

import logging


def logger(name: str) -> logging.Logger:
    """The logger of this name, whose lines never raise. Example: `_log = logger("tenure.store")`

    A filter that needs a request, for example, raises in every thread of the engine. `logging` reports what a handler
    raises in its `emit` on stderr, but lets through what a filter raises; here both are reported.
    """
    found = logging.getLogger(name)
    if "handle" not in found.__dict__:

        def handle(record: logging.LogRecord) -> None:
            try:
                type(found).handle(found, record)
            except Exception:
                logging.Handler().handleError(record)

        found.handle = handle  # type: ignore[method-assign]
    return found
