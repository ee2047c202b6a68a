"""The dashboard: pages for people and a REST API, over `tenure.operations`. Needs the extra `web`."""
