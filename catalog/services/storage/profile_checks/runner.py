"""Run the checks of a storage profile in order, each within a time limit, and remove their objects."""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

import urllib3

from catalog.errors import CatalogError
from catalog.services.storage.profile_checks import (
    access,
    clients,
    connection,
    leftovers,
    objects,
)
from catalog.services.storage.profile_checks.clients import Mint
from catalog.services.storage.profile_checks.results import (
    CheckEnded,
    CheckFailed,
    CheckResult,
    CheckSkipped,
    CheckStatus,
)
from catalog.services.storage.profile_checks.trial import Trial, new_directory
from catalog.storage.configuration import ClientAccess, Key, StoreConfiguration

log = logging.getLogger(__name__)

CHECK_SECONDS = 30.0
"""Time limit of one check. The store's client gives up earlier, and then knows the cause."""
TEST_SECONDS = 90.0
"""Time after which no further check starts."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name, its title, and the function that performs it.

    The function returns details, or raises CheckEnded.
    """

    key: str
    title: str
    perform: Callable[[Trial], str]
    requires: Collection[str] = ()
    """The checks without which this one cannot pass: it is skipped if one of them has failed."""


_S3_ACCESS = ("credentials", "bucket", "region", "path_style")


def checks_of(configuration: StoreConfiguration, mint: Mint) -> list[Check]:
    """The checks of a profile, in order."""
    store_access: tuple[str, ...] = ("endpoint", "list")
    checks = [
        Check("endpoint", "Endpoint reachable", connection.check_endpoint),
        Check("clock", "Clocks agree", connection.check_clock, ("endpoint",)),
    ]
    if configuration.kind == "s3":
        checks += [
            Check("credentials", "Credentials accepted", access.check_credentials, ("endpoint",)),
            Check("bucket", "Bucket exists", access.check_bucket, ("endpoint", "credentials")),
            Check("region", "Region right", access.check_region, ("endpoint",)),
            Check("path_style", "URL style right", access.check_path_style, ("endpoint",)),
        ]
        store_access = ("endpoint", *_S3_ACCESS)
    written = (*store_access, "write")
    checks += [
        Check("list", "List below the root", objects.check_list, store_access),
        Check("write", "Write", objects.check_write, store_access),
        Check("read", "Read back", objects.check_read, written),
        Check("range", "Read a range", objects.check_range, (*written, "read")),
        Check("conditional_write", "Conditional write", objects.check_conditional_write, written),
        Check("multipart", "Multipart upload", objects.check_multipart, written),
        Check("delete", "Delete", objects.check_delete, (*written, "read")),
        Check("bulk_delete", "Delete many", objects.check_bulk_delete, (*written, "delete")),
    ]
    if len(configuration.roots) > 1:
        checks.append(Check("other_roots", "Other roots", objects.check_other_roots, written))
    return checks + _client_checks(configuration, mint, written)


def _client_checks(
    configuration: StoreConfiguration, mint: Mint, written: Collection[str]
) -> list[Check]:
    match configuration.client_access:
        case ClientAccess.STATIC:
            return [Check("client_access", "Access of clients", clients.warn_static)]
        case ClientAccess.NONE:
            return [Check("client_access", "Access of clients", clients.skip_own_credentials)]
        case ClientAccess.SIGNING:
            return [Check("client_access", "Signed requests", clients.check_signing, written)]
    vended = (*written, "client_credentials")
    return [
        Check(
            "client_credentials",
            "Credentials of clients",
            partial(clients.prepare, mint=mint),
            written,
        ),
        Check("client_own", "A client reaches its table", clients.check_own, vended),
        Check("client_sibling", "A client is refused another table", clients.check_sibling, vended),
        Check("client_twin", "A client of A is refused A2", clients.check_twin, vended),
        Check(
            "client_list", "A client is refused foreign lists", clients.check_foreign_list, vended
        ),
        Check("client_parent", "A client is refused the parent", clients.check_parent, vended),
        Check("client_read_only", "A reader cannot write", clients.check_read_only, vended),
    ]


def run_checks(configuration: StoreConfiguration, mint: Mint) -> Iterator[CheckResult]:
    """Run all checks, yielding the result of each when it ends.

    All objects of the test are below one directory of the profile's first root. They are removed at the
    end, and also if the caller stops early.
    """
    root = configuration.roots[0]
    trial = Trial(
        configuration=configuration,
        root=root,
        directory=new_directory(root),
    )
    ends_at = time.monotonic() + TEST_SECONDS
    failed: set[str] = set()
    writing = CheckStatus.SKIPPED
    try:
        for check in checks_of(configuration, mint):
            result = _perform(check, trial, failed, ends_at)
            if result.status == CheckStatus.FAILED or (
                result.status == CheckStatus.SKIPPED and failed.intersection(check.requires)
            ):
                failed.add(check.key)
            if check.key == "write":
                writing = result.status
            yield result
    finally:
        removal = _remove_objects(trial, writing)
    yield removal


def _perform(check: Check, trial: Trial, failed: set[str], ends_at: float) -> CheckResult:
    started_at = time.monotonic()
    status, cause, remedy = CheckStatus.PASSED, "", ""
    try:
        missing = [key for key in check.requires if key in failed]
        if missing:
            raise CheckSkipped(f"The check “{missing[0]}” did not pass")
        if started_at > ends_at:
            raise CheckSkipped(f"The test ended after {TEST_SECONDS:.0f} seconds")
        cause = _within_limit(partial(check.perform, trial))
    except CheckEnded as ended:
        status, cause, remedy = ended.status, ended.cause, ended.remedy
    except (CatalogError, OSError, urllib3.exceptions.HTTPError) as error:
        status, cause = CheckStatus.FAILED, str(error)
        remedy = "Look into the log of the server."
        log.warning(
            "Check '%s' of %s failed", check.key, trial.configuration.profile, exc_info=True
        )
    return CheckResult(
        key=check.key,
        title=check.title,
        status=status,
        seconds=time.monotonic() - started_at,
        cause=scrub(cause, trial.configuration),
        remedy=remedy,
    )


def _within_limit(call: Callable[[], str]) -> str:
    """Call in a thread of its own, for at most CHECK_SECONDS. Raises what the call raises, and CheckFailed."""
    outcome: list[str | BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread of the caller
            outcome.append(error)

    thread = threading.Thread(target=run, name="profile-check", daemon=True)
    thread.start()
    thread.join(CHECK_SECONDS)
    if not outcome:
        raise CheckFailed(
            f"The check did not end within {CHECK_SECONDS:.0f} seconds",
            "Check the network between the server and the store, and the load of the store.",
        )
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _remove_objects(trial: Trial, writing: CheckStatus) -> CheckResult:
    """Remove the objects of the test, as a check of its own. ``writing``: the outcome of the write."""

    def remove(trial: Trial) -> str:
        if writing == CheckStatus.SKIPPED:
            raise CheckSkipped("The test wrote nothing")
        try:
            names = [file.name for file in trial.store.list_tree(trial.directory)]
        except OSError as error:
            if writing == CheckStatus.FAILED:
                raise CheckSkipped("The server can neither write nor list") from error
            names = [*objects.NAMES, *clients.NAMES]
        removed = f"{objects.remove(trial, names)} objects removed"
        return f"{removed}{_remove_leftovers(trial.configuration)}"

    result = _perform(Check("cleanup", "Test objects removed", remove), trial, set(), math.inf)
    if result.status == CheckStatus.FAILED:
        return replace(result, remedy=f"Remove the objects below {trial.directory} yourself.")
    return result


def _remove_leftovers(configuration: StoreConfiguration) -> str:
    """Remove the objects of earlier tests, and say how many. They do not make a profile wrong."""
    try:
        count = leftovers.remove(configuration)
    except OSError as error:
        return f"; those of earlier tests cannot be removed: {error}"
    return f", and {count} of earlier tests" if count else ""


def scrub(text: str, configuration: StoreConfiguration) -> str:
    """A text without the secrets of a profile, which a store's answer may repeat."""
    key = configuration.key or Key()
    for secret in (key.secret, key.token, configuration.external_id):
        if secret:
            text = text.replace(secret, "***")
    return text
