"""Directories that a writer swaps with links to another table's, in a loop, while the server uses them.

The directory behind the link has files with the same names. The server opens, lists, changes and removes none of
them. ``MONODON_TEST_SWAP_SECONDS`` is the duration of each test.
"""

import ctypes
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from catalog.access import SYSTEM
from catalog.errors import CatalogError
from catalog.models import Job, JobStatus, Table
from catalog.services.access import authentication
from catalog.services.engine.commit import commit
from catalog.services.iceberg import contents as iceberg_contents
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.previews import preview
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.maintenance import iceberg_statistics, job_runner, lance_orphans, policies
from catalog.services.recovery import remaining_files
from catalog.services.tables import job_operations
from tests.access.protocols import KEY
from tests.api.client import Lance
from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import files, make_lance_table, relative, stage
from tests.security.foreign import COMMIT, MINE, World, row, snapshot, updates
from tests.security.inotify import Seen, watched

pytestmark = pytest.mark.django_db

_SECONDS = float(os.environ.get("MONODON_TEST_SWAP_SECONDS", "1"))
_EXCHANGE, _HERE = 2, -100
_libc = ctypes.CDLL(None, use_errno=True)


class Swapping:
    """A directory of the attacker's, which a thread exchanges with a link to the same files of a victim."""

    def __init__(self, directory: Path, canary: Path) -> None:
        self._directory, self._link = directory, directory.with_name(f"{directory.name}.link")
        self.canary = canary
        self.swaps = 0
        shutil.copytree(directory, canary, symlinks=True, dirs_exist_ok=True)
        for path in [*canary.rglob("*")]:
            if not (path.is_file() or path.is_dir()) or path.is_symlink():
                path.unlink()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._link.symlink_to(self.canary)
        end = threading.Event()

        def swap() -> None:
            while not end.is_set():
                self._exchange()
                time.sleep(0.0002)  # so that the other thread runs in both states

        thread = threading.Thread(target=swap)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
            if self._directory.is_symlink():
                self._exchange()
            for path in (
                self._directory,
                self._link,
            ):  # the server may have removed the empty directory
                if path.is_symlink():
                    path.unlink()

    def _exchange(self) -> None:
        names = os.fsencode(self._directory), os.fsencode(self._link)
        if _libc.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0:
            self.swaps += 1


def repeat(use: Callable[[], Any]) -> Counter[str]:
    """Call a function until the time is over; returns its outcomes."""
    outcomes: Counter[str] = Counter()
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        try:
            outcome = use()
        except (CatalogError, OSError) as error:
            outcome = type(error).__name__
        outcomes[str(outcome)] += 1
    print(dict(outcomes))
    return outcomes


def require_untouched(swapping: Swapping, seen: Seen, outcomes: Counter[str]) -> None:
    assert swapping.swaps > 50 * _SECONDS
    assert seen.events == []
    assert outcomes
    assert not any(outcome.startswith("5") for outcome in outcomes), outcomes


# --- Iceberg ----------------------------------------------------------------------------------------


@pytest.fixture
def mine(world: World) -> Path:
    for number in range(3):
        open_table(*MINE).append(rows(number))
    for path in (world.mine / "metadata").iterdir():
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            path.unlink()
    return world.mine


def commits(attacker: Iceberg) -> Callable[[], Any]:
    prepared = [snapshot("data", "") for _ in range(5)]
    numbers = iter(range(1, 1_000_000))

    def use() -> Any:
        number = next(numbers)
        document = iceberg_tables.load_table(actor=SYSTEM, table=MINE).document
        added = prepared[number % len(prepared)] | {
            "snapshot-id": number,
            "sequence-number": document["last-sequence-number"] + 1,
            "timestamp-ms": max(document["last-updated-ms"], time.time_ns() // 1_000_000),
        }
        body = {"requirements": [], "updates": updates(added)}
        return attacker.call("POST", COMMIT, body).status_code

    return use


def plans(attacker: Iceberg) -> Callable[[], Any]:
    def use() -> Any:
        return attacker.call("POST", f"{COMMIT}/plan", {}).status_code

    return use


def lists(attacker: Iceberg) -> Callable[[], Any]:
    def use() -> Any:
        document = iceberg_tables.load_table(actor=SYSTEM, table=MINE).document
        reader = iceberg_contents.reader(authentication.authenticate(KEY), row())
        manifests = iceberg_contents.manifests_of(reader, document["snapshots"][-1])
        return [len(iceberg_contents.files_of(reader, manifest)) for manifest in manifests] and "ok"

    return use


def measures(attacker: Iceberg) -> Callable[[], Any]:
    def use() -> Any:
        iceberg_statistics.discard_cache()
        iceberg_statistics.measure(row(), policies.effective_policy(row()))
        return "ok"

    return use


def previews(attacker: Iceberg) -> Callable[[], Any]:
    def use() -> Any:
        opened = preview.open_snapshot(actor=authentication.authenticate(KEY), table=row())
        return len(preview.preview(opened, preview.Request()).rows)

    return use


def properties(attacker: Iceberg) -> Callable[[], Any]:
    numbers = iter(range(1_000_000))

    def use() -> Any:
        update = {"action": "set-properties", "updates": {"a": str(next(numbers))}}
        body = {"requirements": [], "updates": [update]}
        return attacker.call("POST", COMMIT, body).status_code

    return use


@pytest.mark.parametrize("directory", ["metadata", "data", ""])
@pytest.mark.parametrize("uses", [commits, plans, lists, measures, previews, properties])
def test_an_iceberg_table(world, attacker, mine, directory, uses):
    use = uses(attacker)
    victim = Path(Table.objects.get(namespace__name="secret", name="t").location)
    swapping = Swapping(mine / directory if directory else mine, victim / "canary")
    with watched(victim) as seen, swapping.running():
        outcomes = repeat(use)
    require_untouched(swapping, seen, outcomes)


@pytest.mark.parametrize("directory", ["metadata", "data", ""])
def test_the_purge_of_an_iceberg_table(world, mine, directory):
    victim = Path(Table.objects.get(namespace__name="secret", name="t").location)
    table = row()
    with override_settings(MONODON_TRASH_SECONDS=0):
        iceberg_tables.drop_table(actor=SYSTEM, table=MINE, purge=True)
    job = Job.objects.latest("pk")
    copy = mine.with_name("copy of mine")
    shutil.copytree(mine, copy)
    swapping = Swapping(mine / directory if directory else mine, victim / "canary")

    def use() -> str:
        shutil.copytree(copy, mine, dirs_exist_ok=True)
        Job.objects.filter(pk=job.pk).update(status=JobStatus.QUEUED, attempts=0, lease_until=None)
        with swapping.running():
            job_runner.run_job(job.pk)
            remaining_files._has_files(table, None)
        job.refresh_from_db()
        return f"{job.status} {job.error}"

    before = files(victim)
    with watched(victim) as seen:
        outcomes = repeat(use)
    assert swapping.swaps > len(outcomes)
    assert seen.events == []
    assert files(victim) == before


# --- Lance ------------------------------------------------------------------------------------------


@pytest.fixture
def lance_tables(world: World) -> tuple[Table, Table]:
    """The attacker's table, and its victim."""
    return make_lance_table(("mine", "l")), make_lance_table(("secret", "l"))


@pytest.mark.parametrize("directory", ["_versions", ""])
def test_staged_manifests_of_a_lance_table(lance_tables, directory):
    mine, victim = lance_tables
    staged = [stage(mine, number) for number in range(2, 400)]
    location = Path(mine.location)
    canary = Path(victim.location) / "canary"
    swapping = Swapping(location / directory if directory else location, canary)
    remaining = iter(staged)
    versions = iter(range(2, 400))
    current = [next(versions), next(remaining)]

    def use() -> Any:
        number, path = current
        body = {"version": number, "manifest_path": relative(path)}
        answer = Lance(KEY).call("POST", "/v1/table/mine$l/version/create", body)
        lance_versions.settle_pending()
        if answer.status_code == 200:
            current[:] = [next(versions), next(remaining)]
        return answer.status_code

    before = files(canary)
    with watched(victim.location) as seen, swapping.running():
        outcomes = repeat(use)
    require_untouched(swapping, seen, outcomes)
    assert files(canary) == before


# Not the location itself: Lance opens the table by its name (docs/security-model.md).
@pytest.mark.parametrize("directory", ["data", "_versions", "data/deep"])
def test_orphans_of_a_lance_table(lance_tables, monkeypatch, directory):
    mine, victim = lance_tables
    location = Path(mine.location)
    canary = Path(victim.location) / "canary"
    monkeypatch.setattr(lance_orphans, "_MIN_ORPHAN_AGE", 0)
    orphans = [f"{place}/{number}.lance" for place in ("data", "data/deep") for number in range(60)]

    def plant(at: Path) -> None:
        for name in orphans:
            path = at / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"orphan")
            os.utime(path, (1, 1))

    plant(location)
    swapping = Swapping(location / directory if directory else location, canary)

    def use() -> str:
        plant(location)
        start = job_operations.StartMaintenance(
            table=("mine", "l"),
            kind_of_job="remove_orphans",
            parameters={"policy": {"orphan_age": 0}},
        )
        job: Job = commit([start], actor=SYSTEM).results[0]
        with swapping.running():
            job_runner.run_job(job.pk)
        job.refresh_from_db()
        Job.objects.filter(pk=job.pk).update(status=JobStatus.FAILED)
        return f"{job.status} {(job.result or {}).get('files')} {job.error[:80]}"

    before = files(canary)
    with watched(victim.location) as seen:
        outcomes = repeat(use)
    assert swapping.swaps > len(outcomes)
    assert seen.events == []
    assert files(canary) == before
