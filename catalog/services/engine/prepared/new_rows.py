"""New rows of Django models, without what Django does for every instance.

``Model.__init__`` sends two signals, which nobody receives, and sets each attribute through its descriptor.
For a table this takes as long as a small statement.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from django.db import models
from django.db.models.base import ModelState

_M = TypeVar("_M", bound=models.Model)


def new_row(model: type[_M], related: dict[str, models.Model], **values: Any) -> _M:
    """An instance that is not stored yet, equal to ``model(**related, **values)``.

    ``related`` are the related rows by the names of their fields. Raises TypeError for an unknown name.
    """
    row = model.__new__(model)
    row._state = ModelState()
    for name, other in related.items():
        relation: Any = model._meta.get_field(name)
        values[relation.attname] = other.pk
        relation.set_cached_value(row, other)
        if relation.one_to_one:
            relation.remote_field.set_cached_value(other, row)
    attributes = vars(row)
    for name, default in _columns(model):
        attributes[name] = values.pop(name) if name in values else default()
    if values:
        raise TypeError(f"{model.__name__} has no column {', '.join(values)}")
    return row


@lru_cache(maxsize=16)
def _columns(model: type[models.Model]) -> list[tuple[str, Callable[[], Any]]]:
    return [(field.attname, field.get_default) for field in model._meta.concrete_fields]
