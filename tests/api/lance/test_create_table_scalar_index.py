"""CreateTableScalarIndex: the same for scalar and full-text indexes, as an operation of its own."""

import pytest

from catalog.models import AuditEvent, Job, Transaction
from catalog.services.maintenance import job_runner
from tests.api.lance.test_create_table_index import details, table
from tests.factories import make_lance_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("CreateTableScalarIndex")]

PATH = "/v1/table/w$t/create_scalar_index"


def test_a_build_is_one_audited_version_of_its_own_operation(lance):
    make_lance_table(("w", "t"), table())
    answer = lance.post(PATH, {"column": "id", "index_type": "BITMAP", "name": "mine"})
    event = AuditEvent.objects.get(action="index.create")
    assert str(event.transaction_id) == answer["transaction_id"]
    assert (event.after["version"], event.after["name"]) == (2, "mine")
    operations = Transaction.objects.get(pk=answer["transaction_id"]).operations
    assert [operation["operation"] for operation in operations] == ["CreateTableScalarIndex"]


@pytest.mark.parametrize(
    ("column", "kind", "name"),
    [
        ("id", "btree", "BTREE"),
        ("tags", "LABEL_LIST", "LABEL_LIST"),
        ("text", "FTS", "INVERTED"),
        ("text", "NGRAM", "NGRAM"),
    ],
)
def test_scalar_types(lance, column, kind, name):
    make_lance_table(("w", "t"), table())
    lance.post(PATH, {"column": column, "index_type": kind, "with_position": True})
    assert details(lance, f"{column}_idx")["index_type"] == name


def test_refusals(lance):
    make_lance_table(("w", "t"), table())
    for kind in ("IVF_PQ", "ivf_flat", "VECTOR"):
        body = {"column": "v", "index_type": kind}
        lance.refused(400, 13, "is no scalar index", PATH, body)
    lance.refused(404, 12, "'nope'", PATH, {"column": "nope", "index_type": "BTREE"})
    lance.refused(404, 12, "'no pe'", PATH, {"column": "no pe", "index_type": "INVERTED"})
    lance.refused(400, 13, "must be a string", PATH, {"column": "id", "index_type": "NGRAM"})
    lance.post(PATH, {"column": "id", "index_type": "BTREE"})
    lance.refused(409, 7, "id_idx", PATH, {"column": "id", "index_type": "BTREE"})


def test_a_large_build_is_a_job_under_the_same_name(lance, settings):
    settings.MONODON_INDEX_IN_REQUEST_ROWS = 10
    make_lance_table(("w", "t"), table())
    answer = lance.post(PATH, {"column": "id", "index_type": "BTREE"})
    row = Transaction.objects.get(pk=answer["transaction_id"])
    assert [operation["operation"] for operation in row.operations] == ["CreateTableScalarIndex"]
    job_runner.run_job(Job.objects.get().pk)
    built = AuditEvent.objects.get(action="index.create")
    owner = Transaction.objects.get(pk=built.transaction_id)
    assert [operation["operation"] for operation in owner.operations] == ["CreateTableScalarIndex"]
