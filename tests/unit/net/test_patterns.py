"""Globs over paths: a table, the same by way of regular expressions, and no path that is slow."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.net.patterns import PathGlob


@pytest.mark.parametrize(
    ("glob", "meant", "not_meant"),
    [
        ("/v1/chat", ["/v1/chat"], ["/v1/chat/", "/v1/cha", "/V1/chat", "/v1/chat2", "/"]),
        ("/v1/*", ["/v1/", "/v1/a", "/v1/a/b"], ["/v1", "/v2/a", "/", "/av1/b"]),
        ("/v1*", ["/v1", "/v1/a/b", "/v12"], ["/v", "/a/v1"]),
        ("/*/chat", ["/a/chat", "/v1beta/chat"], ["/chat", "//chat", "/a/b/chat", "/a/chat/b"]),
        ("/m/*:run", ["/m/a:run", "/m/:run"], ["/m/a/b:run", "/m/a:runs", "/m/a"]),
        ("/*/*/z", ["/a/b/z"], ["/a/z", "/a//z", "/a/b/c/z"]),
        ("/**/end", ["/a/end", "/a/b/end", "//end"], ["/end", "/a/ends"]),
        ("/a/**", ["/a/", "/a/b/c"], ["/a", "/b/a/"]),
        ("/**/x*y", ["/1/xq/2/xy", "/1/xay"], ["/1/xq/2y"]),
        ("/a.b+c(d)[e]", ["/a.b+c(d)[e]"], ["/axb+c(d)[e]"]),
        ("/***", ["/", "/a/b"], [""]),
    ],
)
def test_what_a_glob_means(glob, meant, not_meant):
    matches = PathGlob(glob).matches
    assert [path for path in meant if not matches(path)] == []
    assert [path for path in not_meant if matches(path)] == []


def as_expression(glob):
    glob = re.sub(r"\*$", "**", glob)
    parts = re.split(r"(\*+)", glob)
    for number in range(1, len(parts), 2):
        if len(parts[number]) > 1:
            parts[number] = ".*"
        else:
            alone = parts[number - 1].endswith("/") and parts[number + 1].startswith("/")
            parts[number] = "[^/]+" if alone else "[^/]*"
    return "".join(part if number % 2 else re.escape(part) for number, part in enumerate(parts))


@given(st.text("ab/*", max_size=8), st.text("ab/", max_size=10))
def test_globs_are_short_for_regular_expressions(glob, path):
    expected = re.fullmatch(as_expression("/" + glob), "/" + path) is not None
    assert PathGlob("/" + glob).matches("/" + path) is expected


def test_many_stars_and_a_long_path_take_no_time():
    """Tried one after the other, the places of nine stars are more than can ever be tried."""
    assert not PathGlob("/" + "**a" * 9 + "*b").matches("/" + "a" * 4000)
