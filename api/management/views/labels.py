"""Labels: which there are, and what they take. Who may do everything everywhere may define them."""

from http import HTTPStatus

from api.management import fact_messages as m
from api.management.operation import ManagementOperation
from catalog.access import Principal
from catalog.services.governance import annotations


class ListLabels(ManagementOperation):
    """All labels, by key."""

    response_model = m.Labels

    def handle(self, actor: Principal, body: None) -> m.Labels:
        return m.Labels(labels=[m.LabelModel.of(row) for row in annotations.list_labels()])


class CreateLabel(ManagementOperation):
    """Define a label."""

    verb = "POST"
    changes = True
    request_model = m.CreateLabelRequest
    response_model = m.LabelModel
    status = HTTPStatus.CREATED

    def handle(self, actor: Principal, body: m.CreateLabelRequest) -> m.LabelModel:
        return m.LabelModel.of(annotations.create_label(actor=actor, **dict(body)))


class GetLabel(ManagementOperation):
    """A label's definition."""

    response_model = m.LabelModel

    def handle(self, actor: Principal, body: None, label: str) -> m.LabelModel:
        return m.LabelModel.of(annotations.find_label(key=label))


class UpdateLabel(ManagementOperation):
    """Change a label's definition; what is left out stays as it is."""

    verb = "PATCH"
    changes = True
    request_model = m.UpdateLabelRequest
    response_model = m.LabelModel

    def handle(self, actor: Principal, body: m.UpdateLabelRequest, label: str) -> m.LabelModel:
        return m.LabelModel.of(annotations.update_label(actor=actor, key=label, **dict(body)))


class DeleteLabel(ManagementOperation):
    """Do away with a label that nothing has."""

    verb = "DELETE"
    changes = True

    def handle(self, actor: Principal, body: None, label: str) -> None:
        annotations.delete_label(actor=actor, key=label)
