"""Queries and operator actions behind the command line, the pages and the API."""
