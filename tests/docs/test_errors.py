"""docs/errors.md lists every error, with its status and its code, type and name in each protocol."""

import re

import pytest

from api.iceberg.errors import STATUS_AND_TYPE
from api.lance.errors import STATUS_AND_CODE
from api.management.errors import STATUS_AND_TITLE
from catalog import errors
from server.options import PROJECT

_NEVER_RAISED = {errors.NotFound, errors.Conflict}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (PROJECT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| error ")
]


def expected() -> dict[str, list[str]]:
    """The first four cells of each row, by the title of the error."""
    rows = {}
    for error, (status, title) in STATUS_AND_TITLE.items():
        if error in _NEVER_RAISED:
            continue
        lance_status, code = STATUS_AND_CODE[error]
        iceberg_status, kind = STATUS_AND_TYPE[error]
        name = title.lower().replace(" ", "-")
        rows[title] = [
            title,
            f"{int(lance_status)}, {code}",
            f"{iceberg_status} `{kind}`",
            f"{status} `{name}`",
        ]
    return rows


def test_the_page_has_a_row_for_every_error():
    titles = [row[0] for row in ROWS]
    assert sorted(titles) == sorted(expected())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_has_the_answers_of_the_protocols(row):
    *cells, text = row
    assert cells == expected()[row[0]]
    assert re.fullmatch(r"[A-Za-z`].*[^.]", text)
