"""The evaluation of policies, which moto's server uses."""

import json

import pytest

from tests.stores import policies

OBJECT = "arn:aws:s3:::lake/A/data/1.lance"


def _policy(**statement: object) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow"} | statement]})


READ_A = _policy(Action="s3:GetObject", Resource="arn:aws:s3:::lake/A/*")
LIST_A = _policy(
    Action="s3:ListBucket",
    Resource="arn:aws:s3:::lake",
    Condition={"StringLike": {"s3:prefix": ["A/*", "A/"]}},
)


@pytest.mark.parametrize(
    ("action", "resource", "allowed"),
    [
        ("s3:GetObject", OBJECT, True),
        ("S3:getobject", OBJECT, True),  # actions ignore case
        ("s3:GetObject", "arn:aws:s3:::lake/A/", True),
        ("s3:GetObject", "arn:aws:s3:::lake/A", False),
        ("s3:GetObject", "arn:aws:s3:::lake/a/x", False),  # resources do not
        ("s3:GetObject", "arn:aws:s3:::lake/A2/x", False),
        ("s3:GetObject", "arn:aws:s3:::lake2/A/x", False),
        ("s3:PutObject", OBJECT, False),
        ("s3:GetObjectAcl", OBJECT, False),
    ],
)
def test_action_and_resource_must_match(action, resource, allowed):
    assert policies.is_allowed([READ_A], action, resource, {}) is allowed


@pytest.mark.parametrize(
    ("prefix", "allowed"),
    [("A/", True), ("A/data/", True), ("A", False), ("A2/", False), ("", False), (None, False)],
)
def test_condition_limits_listings_to_a_prefix(prefix, allowed):
    context = {} if prefix is None else {"s3:prefix": prefix}
    assert policies.is_allowed([LIST_A], "s3:ListBucket", "arn:aws:s3:::lake", context) is allowed


def test_string_equals_takes_wildcards_literally():
    policy = _policy(Action="*", Resource="*", Condition={"StringEquals": {"s3:prefix": "A/*"}})
    assert policies.is_allowed([policy], "s3:ListBucket", "x", {"s3:prefix": "A/*"})
    assert not policies.is_allowed([policy], "s3:ListBucket", "x", {"s3:prefix": "A/1"})


def test_question_mark_matches_one_character():
    policy = _policy(Action="s3:GetObject", Resource="arn:aws:s3:::lake/?/x")
    assert policies.is_allowed([policy], "s3:GetObject", "arn:aws:s3:::lake/A/x", {})
    assert not policies.is_allowed([policy], "s3:GetObject", "arn:aws:s3:::lake/AB/x", {})


def test_deny_wins_in_any_document():
    deny = _policy(Effect="Deny", Action="s3:*", Resource="arn:aws:s3:::lake/A/data/*")
    assert policies.is_allowed([READ_A], "s3:GetObject", OBJECT, {})
    assert not policies.is_allowed([READ_A, deny], "s3:GetObject", OBJECT, {})
    assert not policies.is_allowed([deny, READ_A], "s3:GetObject", OBJECT, {})


def test_nothing_is_allowed_without_a_statement():
    assert not policies.is_allowed([], "s3:GetObject", OBJECT, {})


@pytest.mark.parametrize(
    "statement",
    [
        {"Action": "s3:GetObject", "NotResource": "x"},
        {"NotAction": "s3:GetObject", "Resource": "*"},
        {
            "Action": "*",
            "Resource": "*",
            "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}},
        },
        {"Action": "*", "Resource": "arn:aws:s3:::lake/${aws:username}/*"},
        {"Action": "*", "Resource": "*", "Effect": "allow"},
    ],
)
def test_unsupported_policies_raise(statement):
    with pytest.raises(policies.UnsupportedPolicy):
        policies.is_allowed([_policy(**statement)], "s3:GetObject", OBJECT, {})


def test_unsupported_condition_of_another_action_is_not_reached():
    kms = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": ["alias/lake"]}}
    policy = _policy(Action="kms:Decrypt", Resource="*", Condition=kms)
    assert policies.is_allowed([READ_A, policy], "s3:GetObject", OBJECT, {})
