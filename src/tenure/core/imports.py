"""Imports the module that a setting or a command line names; knows objects of libraries that may not be loaded."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from tenure.errors import InvalidOption

_NOT_OF_APP = (str(Path(os.__file__).parent), "<")  # not sys.base_prefix: of a system's Python it is /usr
_PACKAGES = {"site-packages", "dist-packages"}


def import_named(name: str, what: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists; one that it imports does not
        raise InvalidOption(
            f"{what}: there is no module {error.name!r}; looked in {Path.cwd()} and on sys.path"
        ) from error


def is_of_app(file: str) -> bool:
    """Is it a source file of the app, and not of Python or an installed package?"""
    return bool(file) and not file.startswith(_NOT_OF_APP) and not _PACKAGES & set(Path(file).parts)


def is_a(value: object, *names: str) -> bool:
    """Is it an instance of one of these classes? A library that is not loaded can't have made it."""
    for name in names:
        module, _, kind = name.partition(":")
        found = getattr(sys.modules.get(module), kind, None)
        if isinstance(found, type) and isinstance(value, found):
            return True
    return False
