"""The theme and the callbacks of the web admin (django-unfold)."""

from typing import Any

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Monodon",
    "SITE_HEADER": "Monodon",
    "SITE_SUBHEADER": "Lance and Iceberg catalog",
    "SITE_URL": "/admin/",
    "SITE_DROPDOWN": [
        {"icon": "help", "title": "Documentation", "link": "/help/"},
        {"icon": "api", "title": "Management API", "link": "/docs/management"},
    ],
    "SITE_ICON": "catalog.admin.site.navigation.sign",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": "catalog.admin.site.navigation.sign"}
    ],
    "SHOW_HISTORY": False,  # the audit trail has more details, and cannot be edited
    "SHOW_VIEW_ON_SITE": False,
    "BORDER_RADIUS": "8px",
    "DASHBOARD_CALLBACK": "catalog.admin.site.dashboard.dashboard",
    "SIDEBAR": {
        "command_search": True,
        "navigation": "catalog.admin.site.navigation.navigation",
    },
    # Shades of blue, in the notation of the theme.
    "COLORS": {
        "primary": {
            "50": "oklch(98.4% .019 200.873)",
            "100": "oklch(95.6% .045 203.388)",
            "200": "oklch(91.7% .08 205.041)",
            "300": "oklch(86.5% .127 207.078)",
            "400": "oklch(78.9% .154 211.53)",
            "500": "oklch(71.5% .143 215.221)",
            "600": "oklch(52% .105 223.128)",
            "700": "oklch(45% .085 224.283)",
            "800": "oklch(39.8% .07 227.392)",
            "900": "oklch(34.8% .06 229)",
            "950": "oklch(30.2% .056 229.695)",
        },
    },
}
