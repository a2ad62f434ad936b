"""JSON patches and merge patches, with the examples of RFC 6902 and RFC 7396."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.spark.folding.folds import FoldError, apply_patch, merge_all, parse_path
from tests.thorough import for_each

# RFC 6902, appendix A: document, patch, result.
APPENDIX = {
    "A.1": (
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux"}],
        {"baz": "qux", "foo": "bar"},
    ),
    "A.2": (
        {"foo": ["bar", "baz"]},
        [{"op": "add", "path": "/foo/1", "value": "qux"}],
        {"foo": ["bar", "qux", "baz"]},
    ),
    "A.3": ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    "A.4": (
        {"foo": ["bar", "qux", "baz"]},
        [{"op": "remove", "path": "/foo/1"}],
        {"foo": ["bar", "baz"]},
    ),
    "A.5": (
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    "A.6": (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    "A.7": (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    "A.8": (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [
            {"op": "test", "path": "/baz", "value": "qux"},
            {"op": "test", "path": "/foo/1", "value": 2},
        ],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    "A.10": (
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    "A.11": (
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
        {"foo": "bar", "baz": "qux"},
    ),
    "A.14": (
        {"/": 9, "~1": 10},
        [{"op": "test", "path": "/~01", "value": 10}],
        {"/": 9, "~1": 10},
    ),
    "A.16": (
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
}
REFUSED = {
    "A.9": ({"baz": "qux"}, {"op": "test", "path": "/baz", "value": "bar"}),
    "A.12": ({"foo": "bar"}, {"op": "add", "path": "/baz/bat", "value": "qux"}),
    "A.15": ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": "10"}),
    "no operation": ({}, 5),
    "no op": ({}, {"path": "/a", "value": 1}),
    "an unknown op": ({}, {"op": "spam", "path": "/a", "value": 1}),
    "an op that is no text": ({}, {"op": ["add"], "path": "/a", "value": 1}),
    "no path": ({}, {"op": "add", "value": 1}),
    "no value": ({}, {"op": "add", "path": "/a"}),
    "no from": ({"a": 1}, {"op": "move", "path": "/b"}),
    "a pointer without a slash": ({"a": 1}, {"op": "remove", "path": "a"}),
    "a pointer with a stray tilde": ({"~2": 1}, {"op": "remove", "path": "/~2"}),
    "a path that is no text": ({"a": 1}, {"op": "remove", "path": None}),
    "remove nothing": ({}, {"op": "remove", "path": "/a"}),
    "remove everything": ({}, {"op": "remove", "path": ""}),
    "replace nothing": ({}, {"op": "replace", "path": "/a", "value": 1}),
    "replace past the end": ([1], {"op": "replace", "path": "/1", "value": 1}),
    "replace behind the end": ([1], {"op": "replace", "path": "/-", "value": 1}),
    "add past the end": ([1], {"op": "add", "path": "/2", "value": 1}),
    "an index with a zero": ([1, 2], {"op": "remove", "path": "/01"}),
    "an index with a sign": ([1, 2], {"op": "remove", "path": "/-1"}),
    "an index that is a name": ([1, 2], {"op": "add", "path": "/x", "value": 1}),
    "into a text": ("abc", {"op": "add", "path": "/0", "value": 1}),
    "move into itself": ({"a": {}}, {"op": "move", "from": "/a", "path": "/a/b"}),
    "move nothing": ({}, {"op": "move", "from": "/a", "path": "/b"}),
    "move nothing onto itself": ({}, {"op": "move", "from": "/a", "path": "/a"}),
    "copy nothing": ({}, {"op": "copy", "from": "/a", "path": "/b"}),
    "test nothing": ({}, {"op": "test", "path": "/a", "value": None}),
}


@pytest.mark.parametrize("example", APPENDIX)
def test_the_examples_of_the_appendix(example):
    document, patch, result = deepcopy(APPENDIX[example])
    assert apply_patch(document, patch) == result


@for_each("example", REFUSED)
def test_what_the_rfc_calls_an_error_is_one(example):
    document, operation = deepcopy(REFUSED[example])
    with pytest.raises(FoldError):
        apply_patch(document, [operation])


def test_errors_do_not_quote_whole_documents():
    with pytest.raises(FoldError) as caught:
        apply_patch({"a": "x" * 10_000}, [{"op": "remove", "path": "/b"}])
    assert len(caught.value.message) < 300


def test_what_is_nested_too_deeply_is_refused():
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(FoldError):
        apply_patch({}, [{"op": "add", "path": "/a", "value": deep}])


def test_an_operation_by_itself_is_a_patch():
    assert apply_patch({}, {"op": "add", "path": "/a", "value": 1}) == {"a": 1}


def test_the_whole_document_can_be_replaced():
    assert apply_patch({"a": 1}, [{"op": "add", "path": "", "value": [1]}]) == [1]
    assert apply_patch({"a": 1}, [{"op": "replace", "path": "", "value": None}]) is None
    assert apply_patch({"a": [1]}, [{"op": "copy", "from": "/a", "path": ""}]) == [1]
    assert apply_patch({"a": [1]}, [{"op": "move", "from": "/a", "path": ""}]) == [1]
    assert apply_patch([1], [{"op": "test", "path": "", "value": [1.0]}]) == [1]


def test_the_name_of_a_member_may_be_empty_or_look_like_an_index():
    document = apply_patch({}, [{"op": "add", "path": "/", "value": 1}])
    assert apply_patch(document, [{"op": "add", "path": "/01", "value": 2}]) == {"": 1, "01": 2}


def test_a_copy_is_a_thing_of_its_own():
    patch = [
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "add", "path": "/b/x", "value": 1},
    ]
    assert apply_patch({"a": {}}, patch) == {"a": {}, "b": {"x": 1}}


def test_moving_to_the_same_place_does_nothing():
    assert apply_patch({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}]) == {"a": 1}


def test_an_add_replaces_a_member_that_is_there():
    assert apply_patch({"a": 1}, [{"op": "add", "path": "/a", "value": 2}]) == {"a": 2}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ("1", 1, False),
        ([1, [2]], [1, [2]], True),
        ([1], [1, 2], False),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, ["a"], False),
    ],
)
def test_equality_is_that_of_json(one, other, same):
    for stored, value in ((one, other), (other, one)):
        document, test = {"x": stored}, {"op": "test", "path": "/x", "value": value}
        if same:
            assert apply_patch(document, test) == document
        else:
            with pytest.raises(FoldError):
                apply_patch(document, test)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        # The examples of RFC 6901, section 5.
        ("/foo", ["foo"]),
        ("/foo/0", ["foo", "0"]),
        ("/", [""]),
        ("/a~1b", ["a/b"]),
        ("/c%d", ["c%d"]),
        ("/i\\j", ["i\\j"]),
        ("/ ", [" "]),
        ("/m~0n", ["m~n"]),
        ("/~01", ["~1"]),
    ],
)
def test_pointers(text, steps):
    assert parse_path(text, "key") == tuple(steps)


# RFC 7396, appendix A: original, patch, result.
MERGED = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("original", "patch", "result"), MERGED)
def test_the_examples_of_merge_patches(original, patch, result):
    assert merge_all(original, [patch]) == result


def test_the_example_of_section_three():
    original = {
        "title": "Goodbye!",
        "author": {"givenName": "John", "familyName": "Doe"},
        "tags": ["example", "sample"],
        "content": "This will be unchanged",
    }
    patch = {
        "title": "Hello!",
        "phoneNumber": "+01-123-456-7890",
        "author": {"familyName": None},
        "tags": ["example"],
    }
    assert merge_all(original, [patch]) == {
        "title": "Hello!",
        "author": {"givenName": "John"},
        "tags": ["example"],
        "content": "This will be unchanged",
        "phoneNumber": "+01-123-456-7890",
    }


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.lists(VALUES, max_size=5))
def test_many_are_one_after_the_other(original, patches):
    def by_the_book(target, patch):
        """The pseudocode of section 2."""
        if not isinstance(patch, dict):
            return patch
        result = dict(target) if isinstance(target, dict) else {}
        for name, value in patch.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = by_the_book(result.get(name), value)
        return result

    expected = original
    for patch in patches:
        expected = by_the_book(expected, patch)
    assert merge_all(original, patches) == expected
