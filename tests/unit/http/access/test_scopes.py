"""Scopes: their grammar, and what they allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.access.scopes import (
    Identity,
    Need,
    Scope,
    known_scopes,
    parse_scope,
    parse_scopes,
)
from tests.thorough import for_each

NONE, READ, WRITE, ADMIN = Need.NOTHING, Need.READ, Need.WRITE, Need.ADMIN


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("read:demo", Scope(READ, "demo")),
        ("write:*", Scope(WRITE, "*")),
        ("admin:_default", Scope(ADMIN, "_default")),
        ("read:demo/a", Scope(READ, "demo", "a")),
        ("read:demo/a/b c:d", Scope(READ, "demo", "a/b c:d")),
        ("write:demo/logs-*", Scope(WRITE, "demo", "logs-", is_prefix=True)),
        ("write:demo/logs/*", Scope(WRITE, "demo", "logs/", is_prefix=True)),
        ("write:demo/*", Scope(WRITE, "demo", "", is_prefix=True)),
        ("read:*/public-*", Scope(READ, "*", "public-", is_prefix=True)),
        ("read:münchen/straße", Scope(READ, "münchen", "straße")),
        ("read:a:b", Scope(READ, "a:b")),
    ],
)
def test_every_form_is_understood_and_written_the_same(text, scope):
    assert parse_scope(text) == scope
    assert str(scope) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "read",
        "read:",
        ":demo",
        "demo",
        "READ:demo",
        "delete:demo",
        "read demo",
        " read:demo",
        "read:demo/",
        "read:/a",
        "read:de*mo",
        "read:demo*",
        "read:**",
        "read:demo/a*b",
        "read:demo/a**",
        "read:demo/*a",
        "read:demo/a\n",
        "read:demo\n",
        "read:\0",
        "read:" + "x" * 3000,
    ],
)
def test_everything_else_is_refused_in_words(text):
    with pytest.raises(ValueError, match=r"scope|stream"):
        parse_scope(text)


@given(st.text(max_size=40))
def test_any_text_is_a_scope_or_an_error(text):
    try:
        scope = parse_scope(text)
    except ValueError:
        return
    assert str(scope) == text


def test_the_same_scope_twice_counts_once():
    assert parse_scopes(["read:a", "read:a", "write:a"]) == parse_scopes(["read:a", "write:a"])


def test_foreign_scopes_of_a_jwt_are_passed_over():
    found = known_scopes(["openid", "read:demo", "email", 7, None, "https://api.example/x", ""])
    assert found == (Scope(READ, "demo"),)


def identity(*scopes):
    return Identity("app", parse_scopes(scopes))


# Scopes, need, bucket, stream, whether it is a prefix, and whether that is allowed.
DECISIONS = [
    # Actions include the ones below.
    ("read:demo", READ, "demo", "a", False, True),
    ("read:demo", WRITE, "demo", "a", False, False),
    ("write:demo", READ, "demo", "a", False, True),
    ("write:demo", WRITE, "demo", "a", False, True),
    ("write:demo", ADMIN, "demo", "", False, False),
    ("admin:demo", ADMIN, "demo", "", False, True),
    ("admin:demo", READ, "demo", "a", False, True),
    # Buckets are told apart.
    ("read:demo", READ, "other", "a", False, False),
    ("read:demo", READ, "demo2", "a", False, False),
    ("admin:demo", ADMIN, "other", "", False, False),
    ("read:*", READ, "other", "a", False, True),
    ("read:*", WRITE, "other", "a", False, False),
    # The whole bucket: itself, its streams, its listings.
    ("read:demo", READ, "demo", "", False, True),
    ("read:demo", READ, "demo", "", True, True),
    ("read:demo", READ, "demo", "log", True, True),
    # A prefix covers streams and longer prefixes, not the bucket.
    ("read:demo/log", READ, "demo", "log", False, True),
    ("read:demo/log-*", READ, "demo", "log-1", False, True),
    ("read:demo/log-*", READ, "demo", "log-", False, True),
    ("read:demo/log-*", READ, "demo", "log", False, False),
    ("read:demo/log-*", READ, "demo", "xlog-1", False, False),
    ("read:demo/log-*", WRITE, "demo", "log-1", False, False),
    ("read:demo/log-*", READ, "demo", "", False, False),
    ("read:demo/log-*", READ, "demo", "", True, False),
    ("read:demo/log-*", READ, "demo", "log", True, False),
    ("read:demo/log-*", READ, "demo", "log-", True, True),
    ("read:demo/log-*", READ, "demo", "log-2026", True, True),
    ("read:demo/*", READ, "demo", "", True, True),
    ("read:demo/*", READ, "demo", "a", False, True),
    ("read:demo/*", READ, "demo", "", False, False),
    ("admin:demo/*", ADMIN, "demo", "", False, False),
    # One stream is one stream.
    ("read:demo/log", READ, "demo", "log", True, False),
    ("read:demo/log", READ, "demo", "log2", False, False),
    ("read:demo/log", READ, "demo", "lo", False, False),
    ("write:demo/log", WRITE, "demo", "log", False, True),
    # Prefixes in all buckets.
    ("read:*/public-*", READ, "any", "public-1", False, True),
    ("read:*/public-*", READ, "any", "secret", False, False),
    ("read:*/*", READ, "any", "", True, True),
    # The server is nobody's bucket.
    ("admin:*", ADMIN, "", "", False, True),
    ("read:*", READ, "", "", False, True),
    ("read:*", ADMIN, "", "", False, False),
    ("admin:demo", READ, "", "", False, False),
    ("admin:*/*", READ, "", "", False, False),
    ("admin:*/*", READ, "", "", True, False),
    # A bucket called * on the flat surface is covered like any other.
    ("read:demo", READ, "*", "a", False, False),
    ("read:*", READ, "*", "a", False, True),
]


@for_each(("scope", "need", "bucket", "stream", "is_prefix", "allowed"), DECISIONS)
def test_decisions(scope, need, bucket, stream, is_prefix, allowed):
    assert identity(scope).allows(need, bucket, stream, is_prefix=is_prefix) is allowed


def test_scopes_add_up():
    app = identity("read:a", "write:a/x-*", "admin:b", "read:*/shared")
    assert app.allows(READ, "a", "y")
    assert not app.allows(WRITE, "a", "y")
    assert app.allows(WRITE, "a", "x-1")
    assert app.allows(ADMIN, "b", "")
    assert app.allows(READ, "c", "shared")
    assert not app.allows(READ, "c", "other")


def test_no_scopes_allow_nothing():
    assert not identity().allows(READ, "demo", "a")
    assert not identity().allows(READ, "", "")


names = st.text("ab-/", min_size=1, max_size=4)
buckets = st.sampled_from(["a", "b", "*"])
scopes = st.one_of(
    st.builds(Scope, st.sampled_from([READ, WRITE, ADMIN]), buckets),
    st.builds(Scope, st.sampled_from([READ, WRITE, ADMIN]), buckets, names),
    st.builds(
        lambda need, bucket, text: Scope(need, bucket, text, is_prefix=True),
        st.sampled_from([READ, WRITE, ADMIN]),
        buckets,
        st.text("ab-/", max_size=4),
    ),
)


def plainly_allows(scope, need, bucket, stream, *, is_prefix):
    """The rules of docs/security.md, one by one."""
    if scope.need < need:
        return False
    if scope.bucket not in {"*", bucket}:
        return False
    if not bucket:
        return scope.bucket == "*" and scope.stream is None
    if scope.stream is None:
        return True
    if not stream and not is_prefix:
        return False
    if scope.is_prefix:
        return stream.startswith(scope.stream)
    return stream == scope.stream and not is_prefix


@given(
    st.lists(scopes, max_size=4),
    st.sampled_from([READ, WRITE, ADMIN]),
    st.sampled_from(["a", "b", ""]),
    st.text("ab-/", max_size=4),
    st.booleans(),
)
def test_decisions_are_those_of_the_plain_rules(held, need, bucket, stream, is_prefix):
    expected = any(
        plainly_allows(scope, need, bucket, stream, is_prefix=is_prefix) for scope in held
    )
    allowed = Identity("app", tuple(held)).allows(need, bucket, stream, is_prefix=is_prefix)
    assert allowed is expected


@given(st.lists(scopes, max_size=4), st.sampled_from(["a", "b", ""]), st.text("ab-/", max_size=4))
def test_who_may_do_more_may_do_less(held, bucket, stream):
    app = Identity("app", tuple(held))
    assert app.allows(NONE, bucket, stream)
    for more, less in ((ADMIN, WRITE), (WRITE, READ)):
        if app.allows(more, bucket, stream):
            assert app.allows(less, bucket, stream)
