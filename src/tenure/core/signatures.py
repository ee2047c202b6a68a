"""The signatures of functions that users declare."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable


def signature_of(fn: Callable[..., object]) -> inspect.Signature:
    """Its signature; from Python 3.14 on, even if an annotation names what isn't defined yet, or never will be.

    >>> str(signature_of(sorted))
    '(iterable, /, *, key=None, reverse=False)'
    """
    if sys.version_info >= (3, 14):  # evaluated when read: `inspect` alone raises NameError
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.STRING)
    return inspect.signature(fn)
