"""The search: matches, ranking, and access."""

import re

import pyarrow as pa
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import InvalidInput
from catalog.models import (
    Grant,
    LabelTarget,
    Namespace,
    PrincipalKind,
    SearchDocument,
    SearchWord,
    Sensitivity,
)
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.governance import annotations
from catalog.services.governance.annotations import Changes, ColumnChanges
from catalog.services.search import documents as search_documents
from catalog.services.search import matches, search
from catalog.services.search.search import Page
from catalog.services.tables import table_operations
from tests.cases import shared_cases
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    make_table,
    unchanged,
)

SALES = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("customer", pa.struct([("email", pa.string()), ("shippingAddress", pa.string())])),
        pa.field("total", pa.float64(), metadata={"comment": "Gross, in euros"}),
    ]
)


@pytest.fixture(autouse=True)
def _catalog(db, tmp_path, settings):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    make_namespace("prod", "sales")
    make_lance_table(("prod", "sales", "customer_orders"), SALES.empty_table())
    make_iceberg_table("prod", "sales", "invoices2024")
    make_table("prod", "web", "pageViews")
    make_table("dev", "orders")
    search_documents.update()


def names(page: Page) -> list[str]:
    return [".".join(result.identifier) for result in page.results]


def find(text: str, actor: Principal = SYSTEM, **options) -> list[str]:
    return names(search.search(actor=actor, text=text, **options))


def highlights(page: Page) -> list[tuple[str, str]]:
    """Matches of the first result, with hits in brackets."""
    return [
        (match.field, "".join(f"[{p.text}]" if p.is_hit else p.text for p in match.parts))
        for match in page.results[0].matches
    ]


def annotate(*table: str, **changes) -> None:
    annotations.annotate_table(actor=SYSTEM, table=table, changes=Changes(**changes))


def test_exact_names_rank_before_partial_names_and_texts():
    annotate("prod", "web", "pageViews", description="Joined with orders in the evening")
    assert find("orders") == ["dev.orders", "prod.sales.customer_orders", "prod.web.pageViews"]
    assert find("prod.sales.customer_orders")[0] == "prod.sales.customer_orders"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("page", ["prod.web.pageViews"]),
        ("pageviews", ["prod.web.pageViews"]),
        ("views page", ["prod.web.pageViews"]),
        ("PAGEVIEWS", ["prod.web.pageViews"]),
        ("pagev", ["prod.web.pageViews"]),
        ("invoices2024", ["prod.sales.invoices2024"]),
        ("2024", ["prod.sales.invoices2024"]),
        ("invoices 20", ["prod.sales.invoices2024"]),
        ("shipping", ["prod.sales.customer_orders"]),
        ("euros", ["prod.sales.customer_orders"]),
        ("sales invoices2024", ["prod.sales.invoices2024"]),
        ("cust ord", ["prod.sales.customer_orders"]),
    ],
)
def test_words_are_found_in_names_columns_and_comments(text, expected):
    # Only the last word matches as a prefix: "cust ord" is corrected.
    assert find(text) == expected


def test_quoted_words_must_be_adjacent():
    annotate("dev", "orders", description="of each customer the orders")
    assert find('"customer orders"') == ["prod.sales.customer_orders"]
    assert set(find("customer orders")) == {"prod.sales.customer_orders", "dev.orders"}
    assert find('"orders customer"') == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("format:iceberg", ["prod.sales.invoices2024"]),
        ("kind:namespace", ["dev", "prod", "prod.sales", "prod.web"]),
        ("kind:view", []),
        ("in:prod.sales", ["prod.sales.customer_orders", "prod.sales.invoices2024"]),
        ("in:PROD kind:namespace", ["prod.sales", "prod.web"]),
        ("column:email", ["prod.sales.customer_orders"]),
        ("column:customer.email", ["prod.sales.customer_orders"]),
        ("column:shippingaddress", ["prod.sales.customer_orders"]),
        ("column:views", []),
        ("orders in:dev", ["dev.orders"]),
        ("owner:system kind:table in:dev", ["dev.orders"]),
        ("owner:ada", []),
    ],
)
def test_results_are_filtered(text, expected):
    assert find(text) == expected


def define(key: str, **options) -> None:
    annotations.create_label(actor=SYSTEM, key=key, **options)


def test_labels_are_inherited_and_overridden():
    define("pii")
    annotations.annotate_namespace(
        actor=SYSTEM, namespace=("prod",), changes=Changes(labels={"pii": ["no"]})
    )
    annotations.annotate_namespace(
        actor=SYSTEM, namespace=("prod", "sales"), changes=Changes(labels={"pii": ["Yes"]})
    )
    annotate("prod", "sales", "invoices2024", labels={"pii": ["no"]})
    assert find("label:pii=yes") == ["prod.sales", "prod.sales.customer_orders"]
    assert find("label:pii=no") == [
        "prod",
        "prod.sales.invoices2024",
        "prod.web",
        "prod.web.pageViews",
    ]
    assert find("label:pii in:dev") == []
    assert find("label:pii kind:table") == [
        "prod.sales.customer_orders",
        "prod.sales.invoices2024",
        "prod.web.pageViews",
    ]
    annotate("dev", "orders", columns={})
    assert find("label:pii=maybe") == []
    page = search.search(actor=SYSTEM, text="label:pii=yes in:prod.sales")
    assert highlights(page) == [("label", "[pii] (inherited)")]


def test_a_label_of_a_column_finds_its_table():
    define("pii", applies_to=[LabelTarget.COLUMN])
    annotate(
        "prod",
        "sales",
        "customer_orders",
        columns={"customer.email": ColumnChanges(labels={"pii": ["yes"]})},
    )
    page = search.search(actor=SYSTEM, text="label:pii=yes")
    assert names(page) == ["prod.sales.customer_orders"]
    assert highlights(page) == [("label", "[pii=yes]")]


def test_sensitivity_is_inherited_and_that_of_columns_counts():
    annotations.annotate_namespace(
        actor=SYSTEM,
        namespace=("prod",),
        changes=Changes(sensitivity=Sensitivity.INTERNAL, sets_sensitivity=True),
    )
    annotate(
        "prod",
        "sales",
        "customer_orders",
        columns={"total": ColumnChanges(sensitivity=Sensitivity.RESTRICTED, sets_sensitivity=True)},
    )
    annotate("prod", "web", "pageViews", sensitivity=Sensitivity.PUBLIC, sets_sensitivity=True)
    assert find("sensitivity:restricted") == ["prod.sales.customer_orders"]
    assert find("sensitivity:public") == ["prod.web.pageViews"]
    assert find("sensitivity:internal kind:table") == [
        "prod.sales.customer_orders",
        "prod.sales.invoices2024",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("custmer", "prod.sales.customer_orders"),
        ("cutsomer_orders", "prod.sales.customer_orders"),
        ("custommer ordrs", "prod.sales.customer_orders"),
        ("invoces", "prod.sales.invoices2024"),
        ("paegviews", "prod.web.pageViews"),
        ("column:emial", "prod.sales.customer_orders"),
        ("shipingadress in:prod", "prod.sales.customer_orders"),
    ],
)
def test_typos_are_corrected_without_exact_matches(text, expected):
    page = search.search(actor=SYSTEM, text=text)
    assert expected in names(page)
    assert page.is_corrected


def test_unknown_words_find_nothing():
    page = search.search(actor=SYSTEM, text="zzyzx")
    assert (page.results, page.is_corrected) == ([], False)
    assert find('"custmer"') == []


def test_results_name_the_matching_fields():
    annotate(
        "prod",
        "sales",
        "customer_orders",
        description="All <b>orders</b> since 2019",
        columns={"total": ColumnChanges(description="What the order costs")},
    )
    page = search.search(actor=SYSTEM, text="order")
    assert names(page)[0] in {"prod.sales.customer_orders", "dev.orders"}
    page = search.search(actor=SYSTEM, text="in:prod order")
    assert highlights(page) == [
        ("name", "customer_[orders]"),
        ("column", "[order]_id"),
        ("description", "All <b>[orders]</b> since 2019"),
        ("description", "What the [order] costs"),
    ]


def test_long_texts_are_cut_around_the_match():
    parts = matches.highlight("x " * 100 + "orders" + " y" * 100, {"orders"})
    assert parts[0].text == parts[-1].text == "…"
    assert [fragment.text for fragment in parts if fragment.is_hit] == ["orders"]
    assert sum(len(fragment.text) for fragment in parts) < 200
    assert matches.highlight("Größe", {"grosse"}) == (matches.Part("Größe", is_hit=True),)


def test_results_have_pages():
    for number in range(7):
        make_table("many", f"item_{number}")
    search_documents.reindex()
    for text in ("item", "in:many", "itme", "item in:many"):
        names_seen, token = [], None
        for _ in range(4):
            page = search.search(actor=SYSTEM, text=text, limit=2, page_token=token)
            names_seen += names(page)
            token = page.next_page
        assert token is None
        assert names_seen == [f"many.item_{number}" for number in range(7)]


@shared_cases("token", ["x", "e30", "W10", "WzEsMSwxLDEsMV0", "é", "WzEsMS4wLFsxXSwxLHRydWVd"])
def test_a_token_of_another_list_is_refused(token):
    with pytest.raises(InvalidInput, match="page token"):
        search.search(actor=SYSTEM, text="orders", page_token=token)


@shared_cases(
    ("text", "cause"),
    [
        ("", "The query is empty"),
        ("  -- ", "The query is empty"),
        ("label:", "label:pii=yes"),
        ('owner:""', "owner:ada"),
        ("format:csv", "lance, iceberg"),
        ("kind:thing", "table, view, namespace"),
        ("sensitivity:secret", "public, internal, confidential, restricted"),
        ("x" * 501, "501 characters"),
        ("a b c d e f g h i j k l m n o p q r s t u", "more than 20 words"),
    ],
)
def test_an_empty_query_is_refused_with_a_hint(text, cause):
    with pytest.raises(InvalidInput, match=cause):
        search.search(actor=SYSTEM, text=text)


@shared_cases(
    "text",
    [
        "it's",
        "a:b:c",
        "50%",
        "%s %1$s",
        "\\",
        "'",
        "a\\'b",
        "label:a'b=c%d",
        "in:%",
        "!(a|b)",
        "<->",
        ":e:orders",
        "owner:'",
        "x\0y",
        "label:pii=100%s custmer",
        '"',
        '"a',
        "日本語",
        "é:ü",
    ],
)
def test_no_text_breaks_a_search(text):
    if not re.search(r"\w", text):
        with pytest.raises(InvalidInput, match="The query is empty"):
            search.search(actor=SYSTEM, text=text)
    else:
        search.search(actor=SYSTEM, text=text)


def test_punctuation_is_ignored():
    assert find(":k:table") == []
    assert find("k") == []


def test_a_search_takes_three_statements_at_most():
    define("pii")
    with CaptureQueriesContext(connection) as queries:
        find("orders")
    assert len(queries) == 1
    with CaptureQueriesContext(connection) as queries:
        assert find("label:pii kind:table cutsomer") == []
    assert len(queries) == 3


def test_results_contain_only_objects_that_may_be_browsed():
    nobody = Principal("stranger", Privilege(0))
    for text in ("orders", "format:iceberg", "kind:namespace", "custmer"):
        page = search.search(actor=nobody, text=text)
        assert (page.results, page.is_corrected) == ([], False)
    ada = PrincipalRow.objects.create(name="user:ada", kind=PrincipalKind.USER)
    annotate("prod", "web", "pageViews", owner="user:ada")
    owner = access.of_row(ada)
    assert find("kind:table", owner) == find("owner:ada", owner) == ["prod.web.pageViews"]
    assert find("kind:namespace", owner) == ["prod", "prod.web"]
    assert find("orders", owner) == find("custmer", owner) == []
    namespace = Namespace.objects.named(("prod", "sales")).get()
    Grant.objects.create(principal=ada, namespace=namespace, mask=Privilege.BROWSE)
    assert find("orders", owner) == ["prod.sales.customer_orders"]
    assert find("custmer", owner) == ["prod.sales.customer_orders"]
    assert "dev" not in find("kind:namespace", owner)


def test_corrections_do_not_depend_on_hidden_words():
    """The word 'customer' of a hidden table is more similar than 'customs'."""
    namespace = make_namespace("mine")
    make_table("mine", "customs")
    search_documents.reindex()
    ada = PrincipalRow.objects.create(name="user:ada", kind=PrincipalKind.USER)
    Grant.objects.create(principal=ada, namespace=namespace, mask=Privilege.BROWSE)
    actor = access.of_row(ada)
    assert find("custmer", SYSTEM)[0] == "prod.sales.customer_orders"
    assert "mine.customs" not in find("custmer", SYSTEM)
    assert find("custmer", actor) == ["mine.customs"]


def test_many_hidden_words_do_not_displace_a_correction():
    letters = "abcdefgh"
    for name in (f"custmer{first}{second}" for first in letters for second in letters):
        make_table("prod", "sales", name)
    namespace = make_namespace("mine")
    make_table("mine", "customs")
    search_documents.reindex()
    ada = PrincipalRow.objects.create(name="user:ada", kind=PrincipalKind.USER)
    Grant.objects.create(principal=ada, namespace=namespace, mask=Privilege.BROWSE)
    assert find("custmer", access.of_row(ada)) == ["mine.customs"]


def test_a_search_changes_nothing():
    with unchanged():
        find("custmer label:pii")


def test_the_word_list_follows_the_documents():
    assert SearchWord.objects.filter(key="=customer").exists()
    assert not SearchWord.objects.filter(key="=2024").exists()
    commit(
        [table_operations.DeregisterTable(table=("prod", "sales", "customer_orders"))], actor=SYSTEM
    )
    assert search_documents.reindex() == SearchDocument.objects.count() == 7
    assert not SearchWord.objects.filter(word="customer").exists()
    assert SearchWord.objects.filter(key="=orders").exists()
