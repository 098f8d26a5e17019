"""The URL configuration that ``/schema/lance`` describes."""

from django.urls import include, path

urlpatterns = [path("v1/", include("api.lance.urls"))]
