"""The tables of docs/privileges.md, from the rules of the operations: `python -m tests.access.guide` writes them there."""

import re
from collections.abc import Mapping

from catalog.privileges import Privilege
from server.options import PROJECT
from tests.access.rules import ICEBERG, LANCE, MANAGEMENT, OWN, HiddenAnswer, Rule, Target

PAGE = PROJECT / "docs" / "privileges.md"
PROTOCOLS: Mapping[str, Mapping[str, Rule]] = {
    "The Lance protocol": LANCE,
    "The Iceberg protocol": ICEBERG,
    "The management API": MANAGEMENT,
}
_EXACT = {
    **dict.fromkeys(
        ("RenameTable", "renameTable", "renameView"),
        "manage on the table or view, and create on the namespace of the new name",
    ),
    "BatchCommitTables": "what each of its operations requires",
    "CreateMaterializedView": "create on the namespace, and read on the source",
    "RefreshMaterializedView": "write on the view, and read on the source",
    "ListKeys": "nothing; the answer has the principal's own keys, and for an administrator all keys",
    "signRequest": "read on the table, and write for a request that changes files",
    "UndropTrashItem": "manage on the former namespace, and create on the namespace of the restored object",
}
"""Operations that require more than one privilege, or none on an object; a rule of the tests cannot state this."""
_TARGETS = {
    Target.ROOT: "the parent namespace",
    Target.NAMESPACE: "the namespace",
    Target.TABLE: "the table or view",
    Target.CATALOG: "the whole catalog",
    Target.APPROVAL: "the namespace of the object that the approval concerns",
}


def requirement(operation: str, rule: Rule) -> str:
    """What an operation requires, in words."""
    if operation in _EXACT:
        return _EXACT[operation]
    if rule.target is Target.REQUESTER:
        return "only the requester"
    if rule.target is Target.NOTHING:
        filtered = rule.when_hidden is HiddenAnswer.EMPTY
        return "nothing; the answer has what the principal may browse" if filtered else "nothing"
    if rule == OWN:
        return "the principal's own, or an administrator"
    if rule.needs is Privilege.ALL:
        return "an administrator"
    words = (
        rule.needs.word if rule.or_needs is None else f"{rule.needs.word} or {rule.or_needs.word}"
    )
    return f"{words} on {_TARGETS[rule.target]}"


def table(rules: Mapping[str, Rule]) -> str:
    """A Markdown table: each requirement with its operations, in the order of the rules."""
    rows: dict[str, list[str]] = {}
    for operation, rule in rules.items():
        rows.setdefault(requirement(operation, rule), []).append(f"`{operation}`")
    lines = [f"| {words} | {', '.join(names)} |" for words, names in rows.items()]
    return "\n".join(["| required | operations |", "|---|---|", *lines])


def with_tables(text: str) -> str:
    """The page with the tables of the rules. Raises ValueError if it lacks the section of a protocol."""
    for title, rules in PROTOCOLS.items():
        pattern = rf"(^## {title}\n.*?)^\|.*?(?=\n\n|\n?\Z)"
        new = table(rules)
        text, count = re.subn(
            pattern, lambda match, new=new: match[1] + new, text, flags=re.MULTILINE | re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{PAGE.name} has no table below '## {title}'")
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
