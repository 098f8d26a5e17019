"""Serializers of registrations: tables that lie in storage, and their names."""

from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import Serializer
from catalog.models import TableFormat
from catalog.services.discovery.plans import CandidateStatus
from catalog.services.discovery.registration import Outcome

MAX_ENTRIES = 100
"""The most tables of one request, so that it ends within seconds."""


class PlanRegistrationsSerializer(Serializer):
    """Where to look for tables, and where their names are to be."""

    location = fields.TextField(
        help_text="A directory or prefix, such as s3://lake/tables; all directories below it are searched."
    )
    namespace = fields.NamesField(
        default=list, help_text="The namespace below which the tables get their names."
    )
    formats = serializers.ListField(
        child=fields.EnumField(TableFormat),
        default=list,
        help_text="Only tables of these formats; empty: all.",
    )


class CandidateSerializer(Serializer):
    """A table in storage."""

    format = fields.EnumField(TableFormat)
    location = serializers.CharField()
    metadata_location = serializers.CharField(
        allow_null=True, help_text="Of an Iceberg table, its newest metadata file."
    )
    table = fields.NamesField(help_text="The name that it would get, or has.")
    status = fields.EnumField(CandidateStatus)


class RegistrationPlanSerializer(Serializer):
    """The tables below a location, sorted by location."""

    location = serializers.CharField()
    candidates = CandidateSerializer(many=True)
    is_complete = serializers.BooleanField(
        help_text="False if there are more tables than one plan covers: plan its directories one by one."
    )


class EntrySerializer(Serializer):
    """A table to register."""

    format = fields.EnumField(TableFormat)
    table = fields.NamesField(help_text="The name of the table, with its namespaces.")
    location = fields.TextField(
        help_text="The directory of a Lance table, or the metadata file of an Iceberg table."
    )


class RegisterStoredTablesSerializer(Serializer):
    """Tables to register, each in a transaction of its own."""

    tables = serializers.ListField(
        child=EntrySerializer(),
        min_length=1,
        max_length=MAX_ENTRIES,
        help_text=f"At most {MAX_ENTRIES}. Tables that are registered already are left as they are.",
    )


class RegistrationResultSerializer(Serializer):
    """What became of a table."""

    table = fields.NamesField()
    outcome = fields.EnumField(Outcome)
    message = serializers.CharField(help_text="Of a refusal: why.")


class RegistrationResultsSerializer(Serializer):
    """The results, in the order of the request."""

    results = RegistrationResultSerializer(many=True)
