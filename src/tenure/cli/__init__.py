"""The command line: one small file per noun. Nothing heavy is imported before its command runs."""

from __future__ import annotations

from collections.abc import Mapping

default_store = "TENURE_URL, else sqlite:///tenure.db in this folder"  #: for the help of --url; set before it is read
project: Mapping[str, object] = {}  #: settings that a Django project gives to a command, by name
