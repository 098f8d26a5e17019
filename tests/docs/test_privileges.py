"""docs/privileges.md has the rules that the tests of access control apply."""

import pytest

from catalog.privileges import SINGLE, Privilege, closure, words
from tests.access import guide, rules
from tests.access.rules import OWN, Rule, Target

TEXT = guide.PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_rules():
    assert guide.with_tables(TEXT) == TEXT, "run python -m tests.access.guide"


def test_the_page_lists_what_each_privilege_includes():
    for privilege in SINGLE:
        (line,) = [line for line in TEXT.splitlines() if line.startswith(f"| {privilege.word} |")]
        listed = line.split("|")[2].replace(",", " ").split()
        named = Privilege(0)
        for word in listed:
            named |= Privilege[word.upper()]
        assert words(closure(named)) == words(closure(privilege) & ~privilege)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule(Target.TABLE, Privilege.READ), "read on the table or view"),
        (Rule(Target.NAMESPACE, Privilege.GRANT, or_needs=Privilege.MANAGE), "grant or manage on the namespace"),
        (Rule(Target.CATALOG, Privilege.MANAGE), "manage on the whole catalog"),
        (OWN, "the principal's own, or an administrator"),
        (rules.ADMIN, "an administrator"),
    ],
)  # fmt: skip
def test_requirements_in_words(rule, text):
    assert guide.requirement("Any", rule) == text


def test_a_page_without_a_table_is_refused():
    with pytest.raises(ValueError, match="has no table below '## The Lance protocol'"):
        guide.with_tables("# Privileges\n")
