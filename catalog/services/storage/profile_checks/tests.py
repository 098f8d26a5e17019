"""Tests of storage profiles: request one, run it in a worker or at once, and read the results.

The row is the truth. ``start_test`` sends it to the workers after the commit; if the broker loses the
message, beat sends it again (``send_waiting_tests``). Each result is stored when its check ends.
"""

import logging
from collections.abc import Iterator
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from catalog import access, message_broker
from catalog.access import Principal
from catalog.errors import (
    Conflict,
    ServiceUnavailable,
    StorageProfileNotFound,
    StorageTestNotFound,
)
from catalog.models import StorageProfile, StorageTest, StorageTestStatus
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks
from catalog.services.storage import profiles
from catalog.services.storage.profile_checks.results import CheckResult, CheckStatus
from catalog.storage.configuration import Key

log = logging.getLogger(__name__)

KEPT = 20
"""How many tests of a profile are kept."""
PAGE_SIZE, MAX_PAGE = 20, 100
_LONGEST = timedelta(minutes=5)
"""A test that has not finished after this time was interrupted; its checks take two minutes at most."""
_LONGEST_WAIT = timedelta(minutes=30)
"""A test that no worker has taken after this time is given up."""
_MESSAGE_SECONDS = 120
_ACTIVE = Q(status__in=[StorageTestStatus.QUEUED, StorageTestStatus.RUNNING])


def start_test(*, actor: Principal, name: str) -> StorageTest:
    """Request a test of a profile; a worker runs it. Requires ALL on everything.

    Returns the active test if there is one. Raises StorageProfileNotFound.
    """
    row, is_new = _create(actor, name, StorageTestStatus.QUEUED)
    if is_new:
        transaction.on_commit(lambda: _send([row]))
    return row


def run_at_once(*, actor: Principal, name: str) -> Iterator[CheckResult]:
    """Test a profile in this process, yielding the result of each check. Requires ALL on everything.

    Raises StorageProfileNotFound, and Conflict while a worker tests the profile.
    """
    row, is_new = _create(actor, name, StorageTestStatus.RUNNING)
    if not is_new:
        raise Conflict(f"A test of storage profile '{name}' is already running; wait until it ends")
    yield from _run(row)


def run_test(pk: int) -> None:
    """Run a queued test and store its results. Safe to call twice: only one call runs it.

    A test may take minutes in a process that also runs short tasks. So workers run one test at a time;
    meanwhile this test stays queued, and beat sends it again.
    """
    with locks.advisory_lock("storage profile tests") as is_alone:
        if not is_alone:
            return
        taken = StorageTest.objects.filter(pk=pk, status=StorageTestStatus.QUEUED).update(
            status=StorageTestStatus.RUNNING, started_at=timezone.now()
        )
        if taken:
            for _ in _run(StorageTest.objects.select_related("profile").get(pk=pk)):
                pass


def send_waiting_tests() -> int:
    """Send the queued tests again, and end those whose worker has died; returns the number sent."""
    end_interrupted_tests()
    waiting = list(StorageTest.objects.filter(status=StorageTestStatus.QUEUED).order_by("pk"))
    _send(waiting)
    return len(waiting)


def end_interrupted_tests() -> None:
    """Mark tests whose worker has died, or that no worker takes."""
    now = timezone.now()
    late = Q(status=StorageTestStatus.RUNNING, started_at__lt=now - _LONGEST) | Q(
        status=StorageTestStatus.QUEUED, created_at__lt=now - _LONGEST_WAIT
    )
    StorageTest.objects.filter(late).update(status=StorageTestStatus.INTERRUPTED, finished_at=now)


def list_tests(
    *, actor: Principal, name: str, limit: int | None = None, page_token: str | None = None
) -> tuple[list[StorageTest], str | None]:
    """A page of the tests of a profile, newest first, and the token of the next page.

    Requires ALL on everything. Raises StorageProfileNotFound.
    """
    rows = _tests(actor, name).order_by("-pk")
    if page_token is not None and page_token.isascii() and page_token.isdigit():
        rows = rows.filter(pk__lt=int(page_token[:18]))
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    page = list(rows[: size + 1])
    return page[:size], str(page[size - 1].pk) if len(page) > size else None


def find_test(*, actor: Principal, name: str, test: int) -> StorageTest:
    """A test of a profile. Requires ALL on everything.

    Raises StorageProfileNotFound and StorageTestNotFound.
    """
    row = _tests(actor, name).filter(pk=test).first()
    if row is None:
        raise StorageTestNotFound(test)
    return row


def results(row: StorageTest) -> list[CheckResult]:
    """The results of the checks of a test that have ended."""
    return [CheckResult.from_json(fields) for fields in row.checks]


def _tests(actor: Principal, name: str) -> "QuerySet[StorageTest]":
    access.require(actor, Privilege.ALL)
    profile = StorageProfile.objects.filter(name=name).first()
    if profile is None:
        raise StorageProfileNotFound(name)
    return StorageTest.objects.filter(profile=profile).select_related("profile")


def _create(actor: Principal, name: str, status: StorageTestStatus) -> tuple[StorageTest, bool]:
    """A new test; or the active test of the profile, and False."""
    access.require(actor, Privilege.ALL)
    end_interrupted_tests()
    try:
        with transaction.atomic():
            profile = StorageProfile.objects.filter(name=name).first()
            if profile is None:
                raise StorageProfileNotFound(name)
            row = StorageTest.objects.create(
                profile=profile,
                profile_version=profile.version,
                status=status,
                requested_by=actor.name,
                started_at=None if status == StorageTestStatus.QUEUED else timezone.now(),
            )
            outdated = StorageTest.objects.filter(profile=profile).order_by("-pk")
            StorageTest.objects.filter(
                pk__in=list(outdated.values_list("pk", flat=True)[KEPT:])
            ).delete()
            audit_records.record(actor, "storage_profile.test", name, after={"test": row.pk})
    except IntegrityError:
        active = StorageTest.objects.select_related("profile").filter(_ACTIVE, profile__name=name)
        row_of_other = active.first()
        if row_of_other is None:
            raise ServiceUnavailable(
                "The test that was running has just ended; try again"
            ) from None
        return row_of_other, False
    return row, True


def _send(rows: list[StorageTest]) -> None:
    """Send tests to the workers. Without a broker nothing is lost: beat sends them again."""
    message_broker.send(
        "tasks.maintenance.test_storage_profile",
        [[row.pk] for row in rows],
        expires=_MESSAGE_SECONDS,
        effect=f"{len(rows)} tests wait for beat's next round",
    )


def _run(row: StorageTest) -> Iterator[CheckResult]:
    """Run the checks of a test, storing and yielding each result. Ends the test in any case."""
    mine = StorageTest.objects.filter(pk=row.pk, status=StorageTestStatus.RUNNING)
    status = StorageTestStatus.INTERRUPTED
    checks: list[dict[str, object]] = []
    try:
        for result in _checks(row):
            checks.append(result.as_json())
            mine.update(checks=checks)
            yield result
        has_failed = any(check["status"] == CheckStatus.FAILED for check in checks)
        status = StorageTestStatus.FAILED if has_failed else StorageTestStatus.PASSED
    finally:
        mine.update(status=status, finished_at=timezone.now())


def _checks(row: StorageTest) -> Iterator[CheckResult]:
    # Its libraries take long to load, and only processes that test need them.
    from catalog.services.storage.client_sessions import token_services
    from catalog.services.storage.profile_checks import runner

    configuration = profiles.configuration(row.profile)
    if configuration.key_error:
        yield CheckResult(
            key="profile",
            title="Profile readable",
            status=CheckStatus.FAILED,
            seconds=0.0,
            cause=f"The profile cannot be used: {configuration.key_error}",
            remedy=profiles.REMEDY,
        )
        return

    def mint(location: str, write: bool) -> Key:
        session = token_services.open_session(
            configuration, [location], write=write, principal=row.requested_by
        )
        return session.key

    yield from runner.run_checks(configuration, mint)
