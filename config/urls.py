from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from api.lance.views.fallback import NoRoute

urlpatterns = [
    path("v1/", include("api.iceberg.urls")),
    path("v1/", include("api.lance.urls")),
    path("v1", NoRoute.as_view()),
    path("", include("api.urls")),
    path("admin/", admin.site.urls),
    path("admin", RedirectView.as_view(pattern_name="admin:index")),
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
]
