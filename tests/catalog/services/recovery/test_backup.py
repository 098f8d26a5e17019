"""Backup and restore: the drill, and what is refused."""

import json
import os
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command

from catalog import encryption
from catalog.access import SYSTEM
from catalog.errors import InvalidInput
from catalog.formats.lance import naming
from catalog.models import ApiKey, Job, JobStatus, Table, TableVersion, Webhook
from catalog.postgresql import programs
from catalog.services.access import api_keys
from catalog.services.lance import data as lance_data
from catalog.services.lance.refs import branches
from catalog.services.recovery import backup, restore
from tests.factories import make_iceberg_table, make_lance_table, make_root, open_lance, unchanged
from tests.sealing import seal_all

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def home(tmp_path, settings, monkeypatch) -> Path:
    """A catalog with tables of both formats, a webhook and a generated key."""
    monkeypatch.delenv("MONODON_SECRET_KEY", raising=False)
    monkeypatch.setenv("MONODON_TRASH_SECONDS", "60")
    settings.MONODON_HOME = tmp_path / "home"
    settings.MONODON_WAREHOUSE = str(tmp_path / "home" / "warehouse")
    settings.SECRET_KEY = "the-first-secret-key"
    Path(settings.MONODON_WAREHOUSE).mkdir(parents=True)
    make_root()
    make_lance_table(("prod", "users"))
    make_iceberg_table("prod", "orders")
    secret = encryption.encrypt("whsec")
    Webhook.objects.create(name="hook", url="https://example.com", secret=secret, xid="1")
    _, key = api_keys.create_api_key(actor=SYSTEM, name="admin")
    (settings.MONODON_HOME / "admin_api_key").write_text(f"{key}\n")
    seal_all()
    return settings.MONODON_HOME


def start_over(home: Path, settings) -> None:
    """The state of a new installation: other keys, no tables, an empty warehouse."""
    call_command("flush", interactive=False, verbosity=0)
    make_root()
    shutil.rmtree(settings.MONODON_WAREHOUSE)
    Path(settings.MONODON_WAREHOUSE).mkdir()
    settings.SECRET_KEY = "another-secret-key"
    (home / "secret_key").write_text("another-secret-key")
    _, key = api_keys.create_api_key(actor=SYSTEM, name="other")
    (home / "admin_api_key").write_text(f"{key}\n")


def test_the_drill(home, settings, tmp_path):
    directory = tmp_path / "backup"
    key = (home / "admin_api_key").read_text()
    location = Table.objects.named(("prod", "users")).get().location
    call_command("backup", str(directory), "--warehouse", stdout=StringIO())
    assert directory.stat().st_mode & 0o777 == 0o700
    files = {path.name: path for path in directory.iterdir()}
    assert set(files) == {
        *("manifest.json", "database.dump", "secret_key", "settings.env", "admin_api_key"),
        "warehouse",
    }
    for name in set(files) - {"warehouse"}:
        assert files[name].stat().st_mode & 0o777 == 0o600, name
    assert "MONODON_TRASH_SECONDS=60\n" in files["settings.env"].read_text()
    assert "DATABASE_URL" not in files["settings.env"].read_text()

    with unchanged():
        with pytest.raises(CommandError, match="has namespaces or tables"):
            call_command("restore", str(directory))
        with pytest.raises(CommandError, match="not empty"):
            call_command("backup", str(directory))

    start_over(home, settings)
    output = StringIO()
    call_command("restore", str(directory), stdout=output)
    lines = output.getvalue().splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * (len(lines) - 1), lines
    assert any("secret of webhook hook" in line for line in lines)
    assert (home / "secret_key").read_text().strip() == "the-first-secret-key"
    assert (home / "admin_api_key").read_text() == key
    assert set(ApiKey.objects.values_list("name", flat=True)) == {"admin"}
    assert open_lance(location).count_rows() == 3
    # The catalog is usable: it accepts a commit, and the chain of the audit trail continues.
    lance_data.insert(
        actor=SYSTEM, table=("prod", "users"), data=open_lance(location).to_table().to_reader()
    )
    assert open_lance(Table.objects.named(("prod", "users")).get().location).count_rows() == 6
    seal_all()
    call_command("audit_verify", stdout=StringIO())


def test_versions_that_are_newer_than_the_dump_do_not_come_back(
    home, settings, tmp_path, monkeypatch
):
    """Clients commit while the warehouse is copied; after a restore, they are not in the ledger."""
    branches.create_branch(actor=SYSTEM, table=("prod", "users"), name="draft")
    location = Table.objects.named(("prod", "users")).get().location
    copy = backup._copy_warehouse

    def insert(branch: str = "") -> None:
        data = pa.table({"id": [4], "name": ["d"]})
        lance_data.insert(
            actor=SYSTEM, table=("prod", "users"), data=data.to_reader(), branch=branch
        )

    def insert_and_copy(*arguments, **options):
        for branch in ("", "", "draft"):
            insert(branch)
        copy(*arguments, **options)

    monkeypatch.setattr(backup, "_copy_warehouse", insert_and_copy)
    backup.create(tmp_path / "backup", warehouse=True)
    assert open_lance(location).count_rows() == 5
    start_over(home, settings)
    restore.restore(tmp_path / "backup")
    for branch in ("", "draft"):
        directory = naming.versions_directory(branch)
        names = [path.name for path in Path(location, directory).iterdir()]
        stored = [name for text in names if (name := naming.parse_manifest_name(text))]
        rows = TableVersion.objects.filter(table__location=location).on(branch)
        assert {name.version for name in stored} == set(rows.values_list("version", flat=True))
    assert open_lance(location).count_rows() == 3
    insert()
    insert("draft")
    assert open_lance(location).count_rows() == 4
    assert open_lance(location).checkout_version(("draft", None)).count_rows() == 4
    # The backup is complete.
    (saved,) = (tmp_path / "backup" / "warehouse").glob(f"{Path(location).name}")
    assert lance.dataset(str(saved)).count_rows() == 5


def test_verification_names_what_differs(home, tmp_path, settings):
    manifest = backup.create(tmp_path / "backup")

    def faults() -> dict[str, str]:
        return {check.title: check.fault for check in restore.verify(manifest) if check.fault}

    assert faults() == {}
    settings.SECRET_KEY = "another-secret-key"
    assert "MONODON_SECRET_KEY has changed" in faults()["secret of webhook hook"]
    ApiKey.objects.all().delete()
    assert "audit trail" not in faults()
    number, _ = manifest.seal
    manifest = replace(manifest, seal=(number, "00" * 32))
    assert "audit trail" in faults()
    assert "catalog_apikey has 0 rows, the backup 1" in faults()["counts"]
    assert faults()[str(home / "admin_api_key")] == "the key is not valid"


def test_a_restore_is_refused_before_any_change(home, tmp_path, settings, monkeypatch):
    directory = tmp_path / "backup"
    backup.create(directory, warehouse=True)
    start_over(home, settings)
    with unchanged():
        monkeypatch.setenv("MONODON_SECRET_KEY", "a-third-key")
        with pytest.raises(InvalidInput, match="another key than that of the backup"):
            restore.restore(directory)
        monkeypatch.delenv("MONODON_SECRET_KEY")
        (Path(settings.MONODON_WAREHOUSE) / "file").touch()
        with pytest.raises(InvalidInput, match="is not empty"):
            restore.restore(directory)
        settings.MONODON_WAREHOUSE = str(tmp_path / "elsewhere")
        with pytest.raises(InvalidInput, match="set it to the path of the backup"):
            restore.restore(directory)
        settings.MONODON_WAREHOUSE = str(home / "other")
        manifest = json.loads((directory / "manifest.json").read_text())
        (directory / "manifest.json").write_text(json.dumps(manifest | {"has_warehouse": False}))
        (directory / "database.dump").write_bytes(b"PGDMP broken")
        with pytest.raises(InvalidInput, match="pg_restore cannot read"):
            restore.restore(directory)
        for content in ("{}", "no JSON", json.dumps({"format": 9})):
            (directory / "manifest.json").write_text(content)
            with pytest.raises(InvalidInput):
                restore.restore(directory)
    assert (home / "secret_key").read_text() == "another-secret-key"
    assert not Path(settings.MONODON_WAREHOUSE).exists()


def test_a_restore_that_fails_can_be_repeated(home, tmp_path, settings, monkeypatch):
    directory = tmp_path / "backup"
    location = Table.objects.named(("prod", "users")).get().location
    backup.create(directory, warehouse=True)
    start_over(home, settings)
    warehouse = Path(settings.MONODON_WAREHOUSE)
    dump = (directory / "database.dump").read_bytes()
    (directory / "database.dump").write_bytes(b"PGDMP broken")
    with unchanged(), pytest.raises(InvalidInput, match="pg_restore cannot read"):
        restore.restore(directory)
    assert list(warehouse.iterdir()) == []
    (directory / "database.dump").write_bytes(dump)
    (warehouse / ".restored" / "half").mkdir(parents=True)  # of a restore that was killed
    restore.restore(directory)
    assert open_lance(location).count_rows() == 3
    assert not (warehouse / ".restored").exists()


def test_jobs_that_remove_files_during_the_copy_are_reported(home, tmp_path):
    table = Table.objects.named(("prod", "users")).get()
    job = Job.objects.create(table=table, kind="clean_up", status=JobStatus.RUNNING)
    Job.objects.filter(pk=job.pk).update(started_at="2020-01-01T00:00:00Z")
    with pytest.raises(InvalidInput, match=rf"removed files during the backup \({job.pk}\)"):
        backup.create(tmp_path / "backup", warehouse=True)
    assert not (tmp_path / "backup" / "manifest.json").exists()
    Job.objects.filter(pk=job.pk).update(finished_at="2020-01-01T00:00:01Z")
    backup.create(tmp_path / "other", warehouse=True)


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    directory = tmp_path / "backup"
    directory.mkdir(mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    with pytest.raises(InvalidInput, match="belongs to another user"):
        backup.create(directory)
    assert (list(directory.iterdir()), directory.stat().st_mode & 0o777) == ([], 0o755)


def test_a_missing_program_is_named():
    with pytest.raises(InvalidInput, match="no pg_dump of PostgreSQL 99 or newer"):
        programs.find("pg_dump", at_least=99)
