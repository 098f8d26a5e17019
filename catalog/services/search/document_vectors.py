"""Text search vectors of search documents."""

from collections.abc import Iterable, Sequence

from catalog.identifiers import label
from catalog.models import (
    Facts,
    LabelAssignment,
    SearchDocument,
    Sensitivity,
)
from catalog.services.search import words as search_words
from catalog.services.search.words import Vector, mark


def vector_of(
    row: SearchDocument, annotations: Sequence[Facts], labels: Sequence[LabelAssignment]
) -> Vector:
    """Words and marks of a namespace, table or view."""
    vector = Vector()
    if row.table is not None:
        above, name, owner = row.table.namespace.identifier, row.table.name, row.table.owner
        above_ids = row.table.namespace.ancestors
        vector.mark(mark("d", str(row.table_id)))
        vector.mark(mark("f", row.table.format))
        vector.mark(mark("k", row.table.kind))
    elif row.namespace is not None:
        above, name, owner = row.namespace.identifier[:-1], row.namespace.name, row.namespace.owner
        above_ids = row.namespace.ancestors[:-1]
        vector.mark(mark("w", str(row.namespace_id)))
        vector.mark(mark("k", "namespace"))
    else:
        raise AssertionError("the database has a constraint for this")
    vector.mark(mark("e", name))
    vector.mark(mark("e", label((*above, name))))
    for level in above:
        vector.add(level, "D", follows=True)
    vector.add(name, "A", ":n:", follows=True)
    for depth in range(1, len(above) + 1):
        vector.mark(mark("i", label(above[:depth])))
    for pk in above_ids:
        vector.mark(mark("p", str(pk)))
    _add_owner(vector, owner)
    for assignment in labels:
        kind = "m" if assignment.column else "l"
        vector.mark(mark(kind, assignment.definition.key))
        vector.mark(mark(kind, f"{assignment.definition.key}={assignment.value}"))
        vector.add(f"{assignment.definition.key} {assignment.value}", "B")
    _add_annotations(vector, annotations)
    for path, type_, comment in row.columns:
        vector.mark(f":c={search_words.fold(path, 400)}")
        vector.add(path, "B", ":c:")
        vector.add(type_, "D")
        vector.add(comment, "C")
    return vector


def _add_owner(vector: Vector, owner: str) -> None:
    if owner:
        vector.mark(mark("o", owner))
        vector.mark(mark("o", owner.rpartition(":")[2]))
        vector.add(owner, "D")


def _add_annotations(vector: Vector, annotations: Sequence[Facts]) -> None:
    highest = None
    for annotation in annotations:
        vector.add(annotation.description, "C")
        if annotation.sensitivity and annotation.column:
            sensitivity = Sensitivity(annotation.sensitivity)
            highest = sensitivity if highest is None or sensitivity.rank > highest.rank else highest
        elif annotation.sensitivity:
            vector.mark(mark("s"))
            vector.mark(mark("s", annotation.sensitivity))
        for link in annotation.links:
            vector.add(str(link.get("title", "")), "C")
    if highest is not None:
        vector.mark(mark("t", highest))


def correctable_words(row: SearchDocument) -> Iterable[str]:
    """Words of names and columns that can replace a misspelled word of a query."""
    name = row.table.name if row.table else row.namespace.name if row.namespace else ""
    for text in (name, *(path for path, *_ in row.columns)):
        for word in search_words.words(text):
            if search_words.can_be_corrected(word.text):
                yield word.text
