"""``manage.py register``."""

import io
import json

import lance
import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command

from catalog.models import Table
from tests.factories import make_root, unchanged

pytestmark = pytest.mark.django_db


@pytest.fixture
def lake(db, settings, tmp_path):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    (tmp_path / "lake").mkdir()
    for name in ("users", "orders"):
        lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "lake" / f"{name}.lance"))
    return tmp_path / "lake"


def register(*arguments: str) -> str:
    output = io.StringIO()
    call_command("register", *arguments, stdout=output, stderr=output)
    return output.getvalue()


def test_the_plan_is_printed_and_nothing_is_registered(lake):
    with unchanged():
        text = register(str(lake), "--into", "prod")
    assert "prod.users" in text
    assert text.endswith("2 tables: 2 new\n")


def test_the_tables_are_registered_after_confirmation(lake):
    assert "[2/2]" in register(str(lake), "--into", "prod", "--yes")
    assert {str(row) for row in Table.objects.all()} == {"prod.users", "prod.orders"}
    assert "2 tables: 2 registered" in register(str(lake), "--into", "prod", "--yes")


def test_an_edited_plan_is_registered(lake, tmp_path):
    file = tmp_path / "plan.json"
    register(str(lake), "--output", str(file))
    plan = json.loads(file.read_text())
    plan["tables"] = [{**plan["tables"][0], "table": ["prod", "renamed"]}]
    file.write_text(json.dumps(plan))
    assert "prod.renamed: registered" in register("--plan", str(file))
    assert [str(row) for row in Table.objects.all()] == ["prod.renamed"]


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"tables": [{}]}', '{"tables": [{"format": "x"}]}']
)
def test_malformed_plans_are_refused(lake, tmp_path, content):
    file = tmp_path / "plan.json"
    file.write_text(content)
    with unchanged(), pytest.raises(CommandError, match="is not a plan"):
        register("--plan", str(file))


def test_a_location_or_a_plan_is_required(lake):
    with unchanged(), pytest.raises(CommandError, match="Name a location"):
        register()


def test_refused_tables_fail_the_command(lake, tmp_path):
    file = tmp_path / "plan.json"
    table = {"format": "lance", "table": ["prod", "t"], "location": "s3://unknown/t"}
    file.write_text(json.dumps({"tables": [table]}))
    with pytest.raises(CommandError, match="1 tables were refused"):
        register("--plan", str(file))
    assert not Table.objects.exists()
