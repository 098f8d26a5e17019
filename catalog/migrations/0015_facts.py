import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0014_audit"),
    ]

    operations = [
        migrations.CreateModel(
            name="LabelDefinition",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.TextField(unique=True)),
                ("description", models.TextField(blank=True)),
                (
                    "colour",
                    models.TextField(
                        choices=[
                            ("grey", "Grey"),
                            ("blue", "Blue"),
                            ("green", "Green"),
                            ("yellow", "Yellow"),
                            ("orange", "Orange"),
                            ("red", "Red"),
                        ],
                        default="grey",
                    ),
                ),
                (
                    "values",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        blank=True,
                        default=list,
                        help_text="None: any text is a value.",
                        size=None,
                    ),
                ),
                (
                    "is_multiple",
                    models.BooleanField(
                        default=False, help_text="Whether one thing may have several of its values."
                    ),
                ),
                (
                    "places",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(
                            choices=[
                                ("namespace", "Namespace"),
                                ("table", "table or view"),
                                ("column", "Column"),
                            ]
                        ),
                        help_text="Where it may be put.",
                        size=None,
                    ),
                ),
                ("created_by", models.TextField(blank=True, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("updated_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "verbose_name": "label",
            },
        ),
        migrations.CreateModel(
            name="SearchCursor",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                (
                    "xid",
                    models.BigIntegerField(
                        help_text="AuditEvent.xid of the last event it has seen."
                    ),
                ),
                ("event", models.BigIntegerField(help_text="And its id.")),
            ],
        ),
        migrations.CreateModel(
            name="SearchWord",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "key", "word", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("key", models.TextField()),
                ("word", models.TextField()),
            ],
        ),
        migrations.CreateModel(
            name="Facts",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "column",
                    models.TextField(
                        blank=True, default="", help_text="Its path; empty: no column."
                    ),
                ),
                ("description", models.TextField(blank=True, help_text="Markdown.")),
                (
                    "sensitivity",
                    models.TextField(
                        blank=True,
                        choices=[
                            ("public", "Public"),
                            ("internal", "Internal"),
                            ("confidential", "Confidential"),
                            ("restricted", "Restricted"),
                        ],
                        help_text="Empty: inherited.",
                    ),
                ),
                (
                    "links",
                    models.JSONField(
                        blank=True, default=list, help_text="Titles and URLs, in order."
                    ),
                ),
                ("updated_by", models.TextField(blank=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "namespace",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="facts",
                        to="catalog.namespace",
                    ),
                ),
                (
                    "table",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="facts",
                        to="catalog.table",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "facts",
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("table", None), models.Q(("sensitivity", ""), _negated=True)
                        ),
                        fields=["namespace"],
                        name="facts_classified_namespaces",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("column", ""),
                                ("namespace__isnull", False),
                                ("table__isnull", True),
                            ),
                            models.Q(("namespace__isnull", True), ("table__isnull", False)),
                            _connector="OR",
                        ),
                        name="facts_of_one_thing",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "sensitivity__in",
                                ["", "public", "internal", "confidential", "restricted"],
                            )
                        ),
                        name="facts_known_sensitivity",
                    ),
                    models.UniqueConstraint(fields=("namespace",), name="facts_of_namespace"),
                    models.UniqueConstraint(fields=("table", "column"), name="facts_of_table"),
                ],
            },
        ),
        migrations.CreateModel(
            name="LabelAssignment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "column",
                    models.TextField(
                        blank=True, default="", help_text="Its path; empty: no column."
                    ),
                ),
                ("value", models.TextField(blank=True)),
                ("set_by", models.TextField(blank=True)),
                (
                    "set_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "namespace",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="labels",
                        to="catalog.namespace",
                    ),
                ),
                (
                    "table",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="labels",
                        to="catalog.table",
                    ),
                ),
                (
                    "definition",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="assignments",
                        to="catalog.labeldefinition",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("column", ""),
                                ("namespace__isnull", False),
                                ("table__isnull", True),
                            ),
                            models.Q(("namespace__isnull", True), ("table__isnull", False)),
                            _connector="OR",
                        ),
                        name="label_on_one_thing",
                    ),
                    models.UniqueConstraint(
                        fields=("definition", "namespace", "value"), name="label_on_namespace"
                    ),
                    models.UniqueConstraint(
                        fields=("definition", "table", "column", "value"), name="label_on_table"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SearchDocument",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "vector",
                    django.contrib.postgres.search.SearchVectorField(editable=False, null=True),
                ),
                (
                    "columns",
                    models.JSONField(default=list, help_text="Path, type and comment of each."),
                ),
                (
                    "schema_version",
                    models.TextField(
                        blank=True,
                        help_text="What the columns were read from; empty: they were not read yet.",
                    ),
                ),
                (
                    "due_at",
                    models.DateTimeField(
                        help_text="When it is to be made anew; null: never.", null=True
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                (
                    "error",
                    models.TextField(blank=True, help_text="Why the columns could not be read."),
                ),
                (
                    "namespace",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="search_document",
                        to="catalog.namespace",
                    ),
                ),
                (
                    "table",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="search_document",
                        to="catalog.table",
                    ),
                ),
            ],
            options={
                "indexes": [
                    django.contrib.postgres.indexes.GinIndex(
                        fastupdate=False, fields=["vector"], name="document_vector"
                    ),
                    models.Index(
                        condition=models.Q(("due_at__isnull", False)),
                        fields=["due_at", "id"],
                        name="document_due",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("namespace__isnull", False), ("table__isnull", True)),
                            models.Q(("namespace__isnull", True), ("table__isnull", False)),
                            _connector="OR",
                        ),
                        name="document_of_one_thing",
                    )
                ],
            },
        ),
    ]
