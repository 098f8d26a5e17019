"""Required claims of a signed token."""

from catalog.access import tokens
from catalog.privileges import READ_ONLY, Privilege


def test_a_token_names_its_privileges():
    for privileges in (Privilege.ALL, READ_ONLY):
        token = tokens.read_token(tokens.issue_token(7, privileges))
        assert token is not None
        assert (token.key, token.privileges) == (7, privileges)


def test_a_token_without_privileges_is_invalid():
    """It does not grant all privileges."""
    assert tokens.read_token(tokens.PREFIX + tokens._signer.sign_object({"key": 7})) is None
