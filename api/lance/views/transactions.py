"""Transactions: the status of commits and of the jobs that they started."""

import re

from lance_namespace_urllib3_client import models as m

from api.lance.operation import LanceOperation, choose
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.models import TransactionStatus
from catalog.services.engine import transactions
from catalog.services.engine.transactions import (
    Alteration,
    IfSet,
    IfUnset,
    SetProperty,
    SetStatus,
    UnsetProperty,
)

_TRANSACTION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class TransactionOperation(LanceOperation):
    """An operation on a transaction, by the id of a commit or by table and version."""

    def identify(self, text: str) -> Identifier:
        # The id of a commit is one name, even if it contains the delimiter.
        return (text,) if _TRANSACTION_ID.fullmatch(text) else super().identify(text)


class DescribeTransaction(TransactionOperation):
    """Return the status and properties of a transaction.

    ``id`` is the id of a commit, or a table and one of its versions. If the commit started a job,
    the status follows the job.
    """

    request_model = m.DescribeTransactionRequest
    response_model = m.DescribeTransactionResponse

    def handle(
        self, actor: Principal, body: m.DescribeTransactionRequest, *, id: Identifier
    ) -> m.DescribeTransactionResponse:
        facts = transactions.describe_transaction(actor=actor, transaction=id)
        return m.DescribeTransactionResponse(status=facts.status, properties=facts.properties)


class AlterTransaction(TransactionOperation):
    """Change the properties of a transaction, or cancel its job.

    The actions are applied in their order, all or none. Only the status ``Canceled`` can be set,
    and only while a job of the transaction is not finished.
    """

    request_model = m.AlterTransactionRequest
    response_model = m.AlterTransactionResponse
    changes = True
    is_batch = True

    def handle(
        self, actor: Principal, body: m.AlterTransactionRequest, *, id: Identifier
    ) -> m.AlterTransactionResponse:
        actions = [_action(index, action) for index, action in enumerate(body.actions)]
        facts = transactions.alter_transaction(actor=actor, transaction=id, actions=actions)
        return m.AlterTransactionResponse(status=facts.status, properties=facts.properties)


def _action(index: int, action: m.AlterTransactionAction) -> Alteration:
    status, put, unset = (
        action.set_status_action,
        action.set_property_action,
        action.unset_property_action,
    )
    if sum(action is not None for action in (status, put, unset)) != 1:
        raise InvalidInput(
            f"Action {index}: exactly one of setStatusAction, setPropertyAction and "
            "unsetPropertyAction must be given"
        )
    if status is not None:
        if not status.status:
            raise InvalidInput(f"Action {index}: setStatusAction has no status")
        return SetStatus(choose(TransactionStatus, status.status, TransactionStatus.QUEUED))
    if put is not None:
        if put.key is None or put.value is None:
            raise InvalidInput(f"Action {index}: setPropertyAction needs a key and a value")
        return SetProperty(put.key, put.value, choose(IfSet, put.mode, IfSet.OVERWRITE))
    if unset is None or unset.key is None:
        raise InvalidInput(f"Action {index}: unsetPropertyAction needs a key")
    return UnsetProperty(unset.key, choose(IfUnset, unset.mode, IfUnset.SKIP))
