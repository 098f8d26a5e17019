"""What is said of a namespace or a table, ready to be shown on its page."""

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
class Shown:
    """Everything that a page needs, all of it safe to show."""

    facts: Annotations
    owner: SafeString
    description: SafeString
    """As HTML; empty when there is none."""
    labels: SafeString
    sensitivity: SafeString
    links: Sequence[SafeString]
    columns: Sequence[Sequence[object]]
    """Of each: path, type, description with the schema's comment, labels, sensitivity."""

    @property
    def lines(self) -> Sequence[tuple[str, object]]:
        """Names and values, as a page's facts are."""
        return (
            ("Owner", self.owner),
            ("Labels", self.labels),
            ("Sensitivity", self.sensitivity),
            ("Links", cells.lines(self.links)),
        )


def for_page(row: Table | Namespace) -> Shown:
    """What is said of a row that the reader may browse; of a table, its namespace should be loaded.

    Three statements.
    """
    found = annotations.annotations_of(row)
    return Shown(
        facts=found,
        owner=cells.who(found.owner),
        description=descriptions.render(found.description) if found.description else SafeString(""),
        labels=labels(found.labels),
        sensitivity=_sensitivity_of(found),
        links=[
            format_html(
                '<a class="m-link" href="{}" rel="noopener noreferrer" target="_blank">{}</a>',
                link.url,
                link.title,
            )
            for link in found.links
        ],
        columns=[
            (
                cells.exact(column.path),
                cells.code(column.type) if column.type else cells.muted("not in the schema"),
                cells.lines(
                    part
                    for part in (
                        descriptions.render(column.description) if column.description else "",
                        cells.muted(column.comment) if column.comment else "",
                    )
                    if part
                ),
                labels(column.labels),
                sensitivity(column.sensitivity),
            )
            for column in found.columns
        ],
    )


def labels(given: Iterable[GivenLabel]) -> SafeString:
    """As badges; what is inherited says of whom when pointed at."""
    return (
        cells.spaced(
            format_html(
                '<span title="{}">{}</span>',
                f"inherited from {one.source}" if one.is_inherited else f"of {one.source}",
                cells.badge(
                    f"{one.key}={', '.join(one.values)}" if any(one.values) else one.key,
                    LABEL_COLOURS[one.colour],
                ),
            )
            for one in given
        )
        or cells.NOTHING
    )


def sensitivity(found: Sensitivity | None) -> SafeString:
    return cells.NOTHING if found is None else cells.badge(found.value, _SENSITIVITY[found])


def _sensitivity_of(found: Annotations) -> SafeString:
    parts: list[object] = [sensitivity(found.sensitivity)]
    if found.sensitivity is not None and found.said_sensitivity is None:
        parts.append(cells.muted(f"inherited from {found.sensitivity_source}"))
    if found.highest_sensitivity is not None and found.highest_sensitivity != found.sensitivity:
        parts += [cells.muted("with columns that are"), sensitivity(found.highest_sensitivity)]
    return cells.spaced(parts)
