"""Properties of tables for jobs on Spark."""

import json

from catalog.formats.iceberg.job_properties import LEFT_OUT_FILES, with_left_out_files
from tasks.jobs.iceberg import internals


def test_no_path_is_a_variable_of_hadoop():
    document = {"properties": {"write.format.default": "parquet"}}
    paths = ["file:///b", "file:///a/${env.AWS_SECRET_ACCESS_KEY}", 'file:///ü"\\']
    properties = with_left_out_files(document, paths)["properties"]
    text = properties.pop(LEFT_OUT_FILES)
    assert "$" not in text
    assert json.loads(text) == sorted(paths)
    assert properties == document["properties"]
    assert LEFT_OUT_FILES == internals.LEFT_OUT_FILES


def test_a_table_without_such_files_is_unchanged():
    document = {"format-version": 2}
    assert with_left_out_files(document, ()) is document
    assert with_left_out_files(document, ["x"]) == {
        "format-version": 2,
        "properties": {LEFT_OUT_FILES: '["x"]'},
    }
