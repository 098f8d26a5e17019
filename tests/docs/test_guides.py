"""The guides that no test runs: their Python is valid, and their versions are stated."""

import ast
import re

import pytest

from server.options import PROJECT


@pytest.mark.parametrize("guide", ["polars", "daft"])
def test_the_code_is_valid_and_the_tested_versions_are_stated(guide):
    text = (PROJECT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    assert {"catalog", "namespace", "RestCatalog", "RestNamespace"} <= names
    assert re.search(rf"Tested\s+manually with {guide.capitalize()} \d+\.\d+", text)
    assert re.search(r"in [A-Z][a-z]+ 202\d", text)
