"""Serializers of changes by governance documents. The documents have a format of their own."""

from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import QuerySerializer, Serializer
from catalog.services.governance import document_format


class State(document_format.Document):
    """A document that leaves nothing out."""

    principals: list[document_format.PrincipalPart]
    labels: list[document_format.LabelPart]
    storage_profiles: list[document_format.StorageProfilePart]
    namespaces: list[document_format.NamespacePart]
    tables: list[document_format.TablePart]


class ChangeSerializer(Serializer):
    """A change of an object."""

    target = serializers.CharField()
    field = serializers.CharField(source="aspect")
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class ChangesSerializer(Serializer):
    """Changes, in the order in which they are made."""

    changes = ChangeSerializer(many=True)


class GovernanceQuery(QuerySerializer):
    """The part of the catalog to export."""

    namespace = fields.TextParameter(
        help_text="Only this namespace and everything below it; spelled as in a path."
    )
