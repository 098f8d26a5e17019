import lance as pylance
import pytest

from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table, unchanged

PATH = "/v1/table/w$t/tags/version"
pytestmark = [pytest.mark.django_db, pytest.mark.operation("GetTableTagVersion")]


def test_version_and_branch(lance, reader):
    table = make_lance_table(("w", "t"))
    lance.post("/v1/table/w$t/branches/create", {"name": "dev"})
    lance.post("/v1/table/w$t/tags/create", {"tag": "v1", "version": 1})
    lance.post("/v1/table/w$t/tags/create", {"tag": "d", "version": 1, "branch": "dev"})
    pylance.dataset(table.location).tags.create("theirs", 1)
    with unchanged():
        assert lance.post(PATH, {"tag": "v1"}) == {"version": 1}
        assert lance.post(PATH, {"tag": "theirs"}) == {"version": 1}
        assert reader.post(PATH, {"tag": "d"}) == {"version": 1, "branch": "dev"}


@pytest.fixture
def tag(lance) -> None:
    make_lance_table(("w", "t"))
    lance.post("/v1/table/w$t/tags/create", {"tag": "v1", "version": 1})


@shared_cases("name", ["nope", "", "a/b", "..", "../../x", "é", "a\x00", "x" * 5000, "V1"])
def test_unknown(lance, tag, name):
    lance.refused(404, 8, "has no tag", PATH, {"tag": name})


@pytest.mark.parametrize("body", [{}, {"tag": None}, {"tag": 1}, {"tag": "v1", "id": ["w"]}])
def test_malformed(lance, body):
    make_lance_table(("w", "t"))
    lance.refused(400, 13, "", PATH, body)


def test_no_table_and_no_data(lance):
    lance.refused(404, 1, "'w'", PATH, {"tag": "v1"})
    make_table("w", "t")
    lance.refused(409, 19, "declared", PATH, {"tag": "v1"})
    lance.refused(404, 4, "'w.u'", "/v1/table/w$u/tags/version", {"tag": "v1"})
