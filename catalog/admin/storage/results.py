"""Results of the tests of a storage profile: live while the test runs, and the history."""

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.pages import Panel
from catalog.admin.paging import query
from catalog.models import StorageProfile, StorageTest, StorageTestStatus
from catalog.services.storage.profile_checks import tests as profile_tests
from catalog.services.storage.profile_checks.results import CheckResult, CheckStatus

_COLOURS: dict[str, str] = {
    StorageTestStatus.QUEUED: "info",
    StorageTestStatus.RUNNING: "info",
    StorageTestStatus.PASSED: "success",
    StorageTestStatus.FAILED: "danger",
    StorageTestStatus.INTERRUPTED: "warning",
    CheckStatus.WARNING: "warning",
    CheckStatus.SKIPPED: "plain",
}
# Worst first.
_ORDER = (CheckStatus.FAILED, CheckStatus.WARNING, CheckStatus.PASSED, CheckStatus.SKIPPED)


def badge(status: str) -> SafeString:
    """The badge of a test or of a check."""
    return cells.badge(status, _COLOURS.get(status))


def outcome(row: StorageTest | None, version: int) -> SafeString:
    """The last test of a profile for a list: its status, and whether the profile changed since."""
    if row is None:
        return cells.muted("never tested")
    parts: list[object] = [badge(row.status), cells.when(row.finished_at or row.created_at)]
    if row.profile_version != version:
        parts.append(cells.muted("before the last change"))
    return cells.spaced(parts)


def live(row: StorageTest) -> SafeString:
    """The results of a test. The page polls this while the test is active, and then reloads."""
    checks = profile_tests.results(row)
    return render_to_string(
        "admin/catalog/storage_test.html",
        {
            "test": row,
            "status": badge(row.status),
            "lasted": _lasted(row),
            "lines": [(badge(check.status), check, _duration(check.seconds)) for check in checks],
        },
    )


def live_panel(row: StorageTest) -> Panel:
    """The results of a test as part of the profile's page, with the URL to poll."""
    lead = render_to_string(
        "admin/catalog/job_live.html",
        {
            "fragment": live(row),
            "is_active": row.is_active,
            "interval": 1000,
            "url": reverse("admin:catalog_storageprofile_results", args=[row.profile_id, row.pk]),
        },
    )
    return Panel(
        title=f"Test {row.pk}",
        columns=(),
        rows=(),
        empty="",
        lead=lead,
        note="Each test writes below the first root, and removes its objects at the end.",
    )


def history(request: HttpRequest, profile: StorageProfile) -> Panel:
    """The tests of a profile, newest first. One statement."""
    tests = list(profile.tests.order_by("-pk")[: profile_tests.KEPT])
    return Panel(
        title="Tests",
        columns=("Test", "Result", "Checks", "Requested by", "Requested", "Duration", "Version"),
        rows=[
            (
                cells.anchor(query(request, test=row.pk), f"Test {row.pk}"),
                badge(row.status),
                _counts(profile_tests.results(row)),
                cells.who(row.requested_by),
                cells.when(row.created_at),
                _lasted(row) or cells.NOTHING,
                row.profile_version,
            )
            for row in tests
        ],
        empty="Never tested. Press Test to check the store, the server's key and the access of clients.",
        note=f"The newest {profile_tests.KEPT} tests are kept." if tests else "",
    )


def _counts(checks: list[CheckResult]) -> str:
    """The number of checks with each status, such as "1 failed, 12 passed"."""
    counts = {status: sum(check.status == status for check in checks) for status in _ORDER}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _lasted(row: StorageTest) -> str:
    if row.started_at is None:
        return ""
    return _duration(((row.finished_at or timezone.now()) - row.started_at).total_seconds())
