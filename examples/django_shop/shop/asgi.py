from __future__ import annotations

import os

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
site = ASGIStaticFilesHandler(get_asgi_application())  # first: what follows needs the settings

from tenure.django.asgi import with_dashboard  # noqa: E402

application = with_dashboard(site)
