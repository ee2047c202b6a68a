"""The command line: one small file per noun. Nothing heavy is imported before its command runs."""

from __future__ import annotations

default_store = "TENURE_URL, else sqlite:///tenure.db in this folder"  #: for the help of --url; set before it is read
