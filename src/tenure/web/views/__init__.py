"""The pages, in the order of the navigation, and the actions of their forms: one file per page."""

from __future__ import annotations

from tenure.web.pages import Action, Page
from tenure.web.views import audit, dead, flows, job, jobs, limits, overview, queues, schedules, tasks, tryit, workers

_ALL = (overview, jobs, job, flows, tasks, queues, limits, workers, schedules, dead, audit, tryit)
PAGES: list[Page] = [page for view in _ALL for page in view.PAGES]
ACTIONS: list[Action] = [action for view in _ALL for action in view.ACTIONS]
