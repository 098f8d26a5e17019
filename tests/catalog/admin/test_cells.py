"""Values of JSON in the cells of the admin."""

import pytest

from catalog.admin import cells


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a <b>", "a <b>"),
        (["id", "ts"], "id, ts"),
        ([1, None, True], "1, null, true"),
        (
            {"files": 3, "by": ["id"]},
            (
                '<div class="m-pair"><span class="m-muted">files</span> 3</div>'
                '<div class="m-pair"><span class="m-muted">by</span> id</div>'
            ),
        ),
        (
            {"a": {"b": {"c": 1}}},
            (
                '<div class="m-pair"><span class="m-muted">a</span> <div class="m-pair">'
                '<span class="m-muted">b</span> <pre class="m-json">{\n  &quot;c&quot;: 1\n}</pre></div></div>'
            ),
        ),
        (
            {"<i>": ["<b>"]},
            '<div class="m-pair"><span class="m-muted">&lt;i&gt;</span> &lt;b&gt;</div>',
        ),
    ],
)
def test_values_of_json_are_written_as_words(content, text):
    assert cells.value(content) == text


def test_long_values_of_json_are_folded():
    folded = cells.brief(["column"] * 100)
    assert folded.startswith('<details class="m-fold">')
    assert "[&quot;column&quot;, " in folded
    assert cells.brief([1, 2]) == "1, 2"
