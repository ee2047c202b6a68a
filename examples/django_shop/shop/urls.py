from __future__ import annotations

from django.contrib import admin
from django.urls import path
from orders.views import shop

urlpatterns = [path("", shop), path("admin/", admin.site.urls)]
