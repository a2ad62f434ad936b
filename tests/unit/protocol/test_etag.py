"""Entity tags: different for different streams, ranges and closure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.etag import matches, read_etag

numbers = st.integers(0, 2**63 - 1)
tags = st.tuples(numbers, numbers, numbers, st.booleans())


def tag_of(parts):
    number, start, end, closed = parts
    return read_etag(number, start, end, closed=closed)


@given(tags, tags)
def test_tags_are_equal_only_for_the_same_stream_range_and_closure(one, other):
    assert (tag_of(one) == tag_of(other)) == (one == other)


@pytest.mark.spec("base 8.1-5", "base 8.1-6", "base 8.1-7")
def test_closure_shows_in_the_tag():
    assert read_etag(31, 0, 5, closed=False) == b'"1f:0:5"'
    assert read_etag(31, 0, 5, closed=True) == b'"1f:0:5:c"'


@given(tags)
def test_tag_is_one_quoted_string(parts):
    tag = tag_of(parts)
    assert tag[:1] == tag[-1:] == b'"'
    assert b'"' not in tag[1:-1]
    assert b"," not in tag


@pytest.mark.parametrize(
    "header",
    [
        b'"1f:0:5"',
        b'W/"1f:0:5"',
        b' "1f:0:5" ',
        b'"other", "1f:0:5"',
        b'"other",W/"1f:0:5","another"',
        b"*",
        b" * ",
    ],
)
def test_header_that_names_the_tag_matches(header):
    assert matches(header, b'"1f:0:5"')


@pytest.mark.parametrize(
    "header",
    [b"", b'"1f:0:5:c"', b"1f:0:5", b'"1f:0:50"', b'"1f:0:5', b'"*"', b'w/"1f:0:5"', b",", b'"a"'],
)
def test_header_that_does_not_name_the_tag_does_not_match(header):
    assert not matches(header, b'"1f:0:5"')
