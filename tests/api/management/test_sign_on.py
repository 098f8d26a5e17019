"""The sign-on document, which clients read before they have credentials."""

import pytest

from tests.api.management.client import Management
from tests.factories import unchanged

pytestmark = pytest.mark.django_db

ISSUER = "https://id.example.com/realms/data"


@pytest.mark.operation("GetSignOn")
def test_the_document_names_the_client_of_the_command_line(settings):
    settings.MONODON_OIDC_ISSUERS = [ISSUER, "https://other.example.com"]
    settings.MONODON_OIDC_AUDIENCES = ["monodon"]
    settings.MONODON_OIDC_CLIENT_ID = "monodon-admin"
    settings.MONODON_OIDC_CLIENT_SECRET = "canary-client-secret"
    settings.MONODON_OIDC_CLI_CLIENT_ID = "monodon-cli"
    with unchanged():
        response = Management().call("GET", "sign-on")
    assert (response.status_code, response["cache-control"]) == (200, "public, max-age=300")
    scope = "openid profile offline_access"
    assert response.json() == {
        "device": {"issuer": ISSUER, "client_id": "monodon-cli", "scope": scope}
    }


@pytest.mark.parametrize(("issuers", "client"), [([], "monodon-cli"), ([ISSUER], ""), ([], "")])
def test_the_document_is_empty_without_a_client(settings, issuers, client):
    settings.MONODON_OIDC_ISSUERS = issuers
    settings.MONODON_OIDC_CLI_CLIENT_ID = client
    assert Management().get("sign-on") == {"device": None}


@pytest.mark.parametrize("key", ["mnd_no_such", "eyJx.eyJ9.x"])
def test_wrong_credentials_do_not_matter(settings, key):
    """The answer is the same for everybody, so that caches may keep it."""
    settings.MONODON_OIDC_ISSUERS = [ISSUER]
    for _ in range(30):
        assert Management(key).get("sign-on") == {"device": None}
