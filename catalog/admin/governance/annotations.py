"""Rendered annotations of a namespace or table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.models import LabelColour, Namespace, Sensitivity, Table
from catalog.services.governance import annotations, descriptions
from catalog.services.governance.annotations import Annotations, GivenLabel

LABEL_COLOURS: dict[str, str] = {
    LabelColour.GREY: "plain",
    LabelColour.BLUE: "info",
    LabelColour.GREEN: "success",
    LabelColour.YELLOW: "warning",
    LabelColour.ORANGE: "warning",
    LabelColour.RED: "danger",
}
_SENSITIVITY: dict[str, str] = {
    Sensitivity.PUBLIC: "success",
    Sensitivity.INTERNAL: "info",
    Sensitivity.CONFIDENTIAL: "warning",
    Sensitivity.RESTRICTED: "danger",
}


@dataclass(frozen=True)
class ShownAnnotations:
    """Annotations of a row as safe HTML."""

    facts: Annotations
    owner: SafeString
    description: SafeString
    """HTML; empty if there is no description."""
    labels: SafeString
    sensitivity: SafeString
    links: Sequence[SafeString]
    columns: Sequence[Sequence[object]]
    """For each column: path, type, description with the comment of the schema, labels, sensitivity."""

    @property
    def lines(self) -> Sequence[tuple[str, object]]:
        """Names and values for the details of a page."""
        return (
            ("Owner", self.owner),
            ("Labels", self.labels),
            ("Sensitivity", self.sensitivity),
            ("Links", cells.lines(self.links)),
        )


def for_page(row: Table | Namespace) -> ShownAnnotations:
    """Annotations of a row that the user may browse. Three statements.

    The namespace of a table should be loaded.
    """
    facts = annotations.annotations_of(row)
    return ShownAnnotations(
        facts=facts,
        owner=cells.who(facts.owner),
        description=descriptions.render(facts.description) if facts.description else SafeString(""),
        labels=labels(facts.labels),
        sensitivity=_sensitivity_of(facts),
        links=[
            format_html(
                '<a class="m-link" href="{}" rel="noopener noreferrer" target="_blank">{}</a>',
                link.url,
                link.title,
            )
            for link in facts.links
        ],
        columns=[
            (
                cells.exact(column.path),
                cells.code(column.type) if column.type else cells.muted("not in the schema"),
                cells.lines(
                    text
                    for text in (
                        descriptions.render(column.description) if column.description else "",
                        cells.muted(column.comment) if column.comment else "",
                    )
                    if text
                ),
                labels(column.labels),
                sensitivity(column.sensitivity),
            )
            for column in facts.columns
        ],
    )


def labels(assignments: Iterable[GivenLabel]) -> SafeString:
    """Labels as badges. The tooltip names the source of an inherited label."""
    return (
        cells.spaced(
            format_html(
                '<span title="{}">{}</span>',
                f"inherited from {assignment.source}"
                if assignment.is_inherited
                else f"set on {assignment.source}",
                cells.badge(
                    f"{assignment.key}={', '.join(assignment.values)}"
                    if any(assignment.values)
                    else assignment.key,
                    LABEL_COLOURS[assignment.colour],
                ),
            )
            for assignment in assignments
        )
        or cells.NOTHING
    )


def sensitivity(level: Sensitivity | None) -> SafeString:
    return cells.NOTHING if level is None else cells.badge(level.value, _SENSITIVITY[level])


def _sensitivity_of(facts: Annotations) -> SafeString:
    if facts.sensitivity is None and facts.highest_sensitivity is None:
        return cells.NOTHING
    parts: list[object] = [sensitivity(facts.sensitivity)]
    if facts.sensitivity is not None and facts.said_sensitivity is None:
        parts.append(cells.muted(f"inherited from {facts.sensitivity_source}"))
    if facts.highest_sensitivity is not None and facts.highest_sensitivity != facts.sensitivity:
        parts += [cells.muted("with columns that are"), sensitivity(facts.highest_sensitivity)]
    return cells.spaced(parts)
