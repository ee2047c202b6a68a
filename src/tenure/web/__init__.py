"""The dashboard: pages for people and a REST API, over `tenure.admin`. Needs the extra `web`."""
