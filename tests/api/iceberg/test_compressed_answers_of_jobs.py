"""Answers to jobs that leave out files, as they are compressed and cached."""

import gzip
import json

from api.iceberg import answers
from catalog.formats.iceberg.job_properties import LEFT_OUT_FILES
from catalog.models import TableFormat, TableKind
from catalog.services.iceberg import metadata_files, tables

LOCATION = "s3://bucket/t/metadata/00001.metadata.json"


def test_each_set_of_files_that_are_left_out_has_its_own_answer():
    """Jobs of several kinds read different files of the same state of a table, and rights change meanwhile."""
    answer = metadata_files.answer(LOCATION, json.dumps({"properties": {}}).encode())
    table = tables.LoadedTable(
        ("ns", "t"),
        1,
        TableFormat.ICEBERG,
        TableKind.TABLE,
        "s3://bucket/t",
        LOCATION,
        1,
        metadata_files.new_etag(),
        answer,
    )
    tags = set()
    for files in ({"s3://b/x"}, {"s3://b/x", "s3://b/y"}, set[str](), {"s3://b/y"}):
        loaded = tables.for_job(table, files)
        assert loaded.answer is not None
        body = answers.with_fields(loaded.answer, b'"config":{}', etag=loaded.etag, gzip=True)
        properties = json.loads(gzip.decompress(body))["metadata"]["properties"]
        assert set(json.loads(properties.get(LEFT_OUT_FILES, "[]"))) == files
        tags.add(loaded.etag)
    assert len(tags) == 4
