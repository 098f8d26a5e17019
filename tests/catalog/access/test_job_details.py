from catalog import access
from catalog.access import SYSTEM
from catalog.models import Job
from tests.factories import make_table


def test_details_of_a_job_are_for_those_who_may_read_its_table(db):
    table = make_table("a", "t")
    details = {
        "parameters": {"columns": ["a"]},
        "result": {"files": 1},
        "error": "column a",
        "engine_reason": "1 GiB",
        "spark_ui": "http://127.0.0.1:4040",
    }
    rows = [Job(table=table, **details), Job(table=table)]
    assert access.limit_jobs(SYSTEM, rows) == rows
    limited = access.limit_jobs(access.Principal("etl"), rows)
    assert [row.has_details for row in limited] == [False, False]
    assert [row.error for row in limited] == [
        "The message is shown to principals that may read the table",
        "",
    ]
    for row in limited:
        assert (row.parameters, row.result, row.engine_reason, row.spark_ui) == ({}, None, "", "")
    assert {name: getattr(rows[0], name) for name in details} == details
    assert rows[0].has_details
