"""Posts that no page of the admin offers."""

import pytest
from django.contrib import admin
from django.db.models import Model
from django.urls import reverse

from tests.factories import fingerprint, make_namespace, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


def urls(model: type[Model], *names: str) -> list[str]:
    meta = model._meta
    row = model._default_manager.order_by("pk").first()
    pk = row.pk if row is not None else 1
    prefix = f"admin:{meta.app_label}_{meta.model_name}"
    return [
        reverse(f"{prefix}_{name}", args=[] if name in {"changelist", "add"} else [pk])
        for name in names
    ]


@pytest.mark.parametrize("levels", [("read",), ("manage", "grant")], ids="+".join)
def test_actions_of_django_that_pages_do_not_offer_change_nothing(sign_in, make_profile, levels):
    """Neither the bulk deletion of lists, nor Django's own deletion, nor a form without its fields."""
    make_namespace("prod")
    make_table("prod", "t")
    make_profile(name="lake", roots=["s3://lake/root"])
    client = sign_in(*levels)
    client.raise_request_exception = False
    client.get("/admin/")
    before = fingerprint()
    for model in admin.site._registry:
        if model._meta.app_label != "catalog":
            continue
        (changelist,) = urls(model, "changelist")
        pks = [str(pk) for pk in model._default_manager.values_list("pk", flat=True)[:5]]
        post = {"action": "delete_selected", "_selected_action": pks, "post": "yes", "index": "0"}
        answers = [client.post(changelist, post)]
        forms = urls(model, "delete", "change")
        answers += [client.post(url, {"post": "yes", "_save": "1"}) for url in forms]
        assert all(answer.status_code < 500 for answer in answers), model
        assert fingerprint() == before, model
