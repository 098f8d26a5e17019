"""`.ci/phrases.py`: phrases that pages and messages do not use."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "phrases.py"


@pytest.fixture
def phrases(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("phrases", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_banned_phrases_are_reported_with_their_line_and_remedy(phrases):
    text = "Rows are read.\nSimply build it anew, in order to see.\nThis is anew.  <!-- phrase: quoted -->"
    assert sorted((line, phrase) for line, phrase, _ in phrases.findings(text)) == [
        (2, "Simply"),
        (2, "anew"),
        (2, "in order to"),
    ]


def test_words_that_contain_a_phrase_are_allowed(phrases):
    for text in ("a canewood chair", "an order too", "simplify", "data-anew", "the land/ordinal"):
        assert not list(phrases.findings(text)), text


def test_the_pages_templates_and_messages_have_no_banned_phrase():
    process = subprocess.run(
        [sys.executable, str(SCRIPT)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (process.returncode, process.stdout) == (0, "")


def test_a_finding_fails_the_check(phrases, tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("Click here.\n")
    monkeypatch.setattr(phrases, "ROOT", tmp_path)
    monkeypatch.setattr(phrases, "FILES", ())
    assert phrases.main() == 1
    assert capsys.readouterr().out == "docs/page.md:1: 'Click here': name what the link leads to\n"
