"""Patterns, against a model that tries everything."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SubscriptionError
from holdfast.subscriptions.paths import PATTERN_BYTES_MAX, StreamGlob, name_of, path_of

SEGMENTS = st.sampled_from(["a", "b", "ab", "", "%2A"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join)
PATTERNS = st.lists(st.one_of(SEGMENTS, st.sampled_from(["*", "**"])), min_size=1, max_size=5).map(
    "/".join
)


def model(pattern, path):
    """What the rules say, by trying every split."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(model(pattern[1:], path[at:]) for at in range(len(path) + 1))
    if not path:
        return False
    literal = pattern[0].replace("%2A", "*")
    return (pattern[0] == "*" or literal == path[0]) and model(pattern[1:], path[1:])


@pytest.mark.spec("subscriptions 6.2-4")
@given(PATTERNS.filter(bool), PATHS)
def test_matches_what_the_rules_say(pattern, path):
    path = path.replace("%2A", "*")
    assert StreamGlob(pattern).matches(path) == model(pattern.split("/"), path.split("/"))


@given(PATTERNS.filter(bool), PATHS)
def test_every_match_starts_with_a_prefix(pattern, path):
    """No stream that matches is missed when only names with the prefixes are looked at."""
    path = path.replace("%2A", "*")
    glob = StreamGlob(pattern)
    try:
        name = name_of(path)
    except SubscriptionError:
        return
    if glob.matches(path_of(name)):
        assert any(name.startswith(prefix) for prefix in glob.name_prefixes())
        assert glob.first in {None, path_of(name).split("/")[0]}


@pytest.mark.parametrize(
    ("pattern", "prefixes"),
    [
        ("events/*", ["events/"]),
        ("events/a", ["events/a"]),
        ("events/a/**", ["events/a"]),
        ("events/**", ["events/", "_default/events"]),
        ("*", ["_default/"]),
        ("a", ["_default/a"]),
        ("**", [""]),
        ("*/a", [""]),
    ],
)
def test_looks_at_no_more_names_than_needed(pattern, prefixes):
    assert StreamGlob(pattern).name_prefixes() == prefixes


@pytest.mark.parametrize("pattern", ["a*", "x/***", "x/*.json", "", "a" * (PATTERN_BYTES_MAX + 1)])
def test_patterns_that_mean_something_else_are_refused(pattern):
    with pytest.raises(SubscriptionError):
        StreamGlob(pattern)


def test_many_wildcards_take_no_time():
    """A backtracking matcher would need longer than the universe."""
    glob = StreamGlob("/".join(["**", "a"] * 100))
    started = time.monotonic()
    assert not glob.matches("/".join("a" * 400) + "/b")
    assert time.monotonic() - started < 30
