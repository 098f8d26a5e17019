"""Principals without a database: names, and limits of keys."""

import uuid
from dataclasses import replace

from catalog.access import COMMAND, SYSTEM, IdempotencyKey, Principal
from catalog.access.credentials import key_digest, new_key
from catalog.privileges import NOTHING, READ_ONLY, Privilege


def test_a_principal_without_rows_owns_nothing():
    assert Principal("etl", groups=("group:a",)).names == ()
    assert Principal("etl", ids=(1, 2), groups=("group:a",)).names == ("etl", "group:a")


def test_the_narrowed_name_has_the_limits_of_the_key():
    assert Principal("etl", READ_ONLY, ids=(1,)).narrowed_name == "etl"
    assert Principal("etl", ceiling=READ_ONLY).narrowed_name == "etl:3::"
    assert Principal("etl", within=5).narrowed_name == "etl:127:5:"
    assert Principal("etl", tables=(8, 9)).narrowed_name == "etl:127::8,9"


def test_a_key_limited_to_a_namespace_has_no_global_privileges():
    reader = Principal("etl", READ_ONLY)
    assert reader.holds_everywhere(Privilege.READ)
    assert not reader.holds_everywhere(Privilege.WRITE)
    assert not replace(reader, within=5).holds_everywhere(Privilege.READ)


def test_a_copy_for_a_request_does_not_change_the_principal():
    reader = Principal("etl", READ_ONLY, ids=(1,))
    copy = reader.through(request_id="r1", interface="lance")
    assert copy == replace(reader, request_id="r1", interface="lance")
    assert (reader.request_id, reader.interface) == ("", "")


def test_the_fingerprint_of_an_idempotency_key_is_the_digest_of_the_request():
    assert IdempotencyKey(uuid.uuid4(), lambda: "abc").fingerprint == "abc"


def test_the_principals_of_the_catalog_itself():
    assert (SYSTEM.name, SYSTEM.everywhere, SYSTEM.interface) == ("system", Privilege.ALL, "system")
    assert replace(SYSTEM, interface="command") == COMMAND
    assert Principal("etl").everywhere == NOTHING


def test_keys_are_long_random_and_stored_as_their_digest():
    first, second = new_key(), new_key()
    assert first != second
    assert first.startswith("mnd_")
    assert len(first) == 4 + 43  # 32 bytes as Base64
    assert key_digest("mnd_ä") == (
        "879779fff9c4c42a22da6465282b166da04088f5854b7f5ad6d734046f0813e6"
    )
    # A header may contain any byte. Such a text is not a key, but has a digest.
    assert len(key_digest("mnd_\udcff")) == 64
