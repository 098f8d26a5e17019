"""The package of the Lance models is imported without its HTTP client, until a name of that is used."""

import os
import subprocess
import sys

PROGRAM = """
import sys
import django
django.setup()
from lance_namespace_urllib3_client import models
import lance_namespace_urllib3_client.models.query_table_request
import lance
package = sys.modules["lance_namespace_urllib3_client"]
api = "lance_namespace_urllib3_client.api.table_api"
assert models is package.models
assert not hasattr(package, "__missing__")
assert api not in sys.modules
assert package.__name__ == "lance_namespace_urllib3_client"
from lance_namespace_urllib3_client import ApiClient, TableApi
assert TableApi is sys.modules[api].TableApi
assert package.models is models
assert models.QueryTableRequest is package.QueryTableRequest
assert sys.modules["lance_namespace_urllib3_client"] is package
try:
    package.missing
except AttributeError:
    print("passed")
"""


def test_the_http_client_is_imported_when_it_is_used() -> None:
    completed = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", PROGRAM],
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout == "passed\n", completed.stderr


def test_a_module_of_the_http_client_can_be_imported_first() -> None:
    """Its modules import each other from the package, which is not loaded then."""
    program = (
        "from catalog.deferred_client import install\n"
        "install()\n"
        "from lance_namespace_urllib3_client.api.table_api import TableApi\n"
        "import lance_namespace_urllib3_client as package\n"
        "assert package.TableApi is TableApi\n"
        "print('passed')"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert completed.stdout == "passed\n", completed.stderr
