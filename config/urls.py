from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from api.iceberg.views.oauth import GetToken
from api.lance.views.fallback import NoRoute
from api.management.views.fallback import NoRoute as NoManagementRoute
from catalog.admin.access import my_access, sign_on, suggestions, users
from catalog.admin.site import command_bar, errors, glossary
from catalog.admin.tables import explorer

admin.autodiscover()

handler403 = errors.permission_denied
handler404 = errors.page_not_found

urlpatterns = [
    path("v1/", include("api.iceberg.urls")),
    path("v1/", include("api.lance.urls")),
    path("v1", NoRoute.as_view()),
    path("management/v1/", include("api.management.urls")),
    re_path(r"^management(?:/|$)", NoManagementRoute.as_view()),
    path("oauth/token", GetToken.as_view()),
    path("", include("api.urls")),
    path("docs/", RedirectView.as_view(url="/docs")),
    path("admin/sign-on/", sign_on.begin, name="sign-on"),
    path("admin/sign-on/callback", sign_on.finish, name="sign-on-finish"),
    path("admin/logout/", sign_on.leave),
    path("admin/password_change/", users.change_password),
    path("admin/my-access/", include(my_access.urls())),
    path("admin/explorer/", include(explorer.urls())),
    path("admin/autocomplete/", suggestions.autocompletion),
    path("admin/suggest/", include(suggestions.urls())),
    path("admin/glossary/", include(glossary.urls())),
    path("admin/search/", include(command_bar.urls())),
    path("admin/", admin.site.urls),
    path("admin", RedirectView.as_view(pattern_name="admin:index")),
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
]
