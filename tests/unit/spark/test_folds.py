"""Folds: in pieces or at once, what fits and what does not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SettingsError
from holdfast.spark.folding.folds import (
    Concatenation,
    FoldError,
    JsonPatches,
    LastByKey,
    MergePatches,
    SnapshotBody,
    UserFunction,
    is_function_name,
    load_function,
    merge_all,
    parse_path,
)

JSON = "application/json"
BYTES = "application/octet-stream"
NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


class ListedMessages:
    def __init__(self, payloads, *, is_json):
        self.is_json = is_json
        self._payloads = payloads

    def payloads(self):
        return self._payloads

    def joined(self, separator):
        return separator.join(self._payloads)


def fold(fold, pieces, content_type=JSON, before=None):
    """Fold the pieces in one go; the snapshot."""
    state = fold.begin(content_type, before)
    for piece in pieces:
        payloads = [each if isinstance(each, bytes) else text(each) for each in piece]
        state = fold.add(state, ListedMessages(payloads, is_json=content_type == JSON))
    return fold.end(state)


def text(value):
    return json.dumps(value).encode()


def in_goes(fold_, pieces, content_type=JSON):
    """Fold each piece from the snapshot that the one before left."""
    body = None
    for piece in pieces:
        body = fold(fold_, [piece], content_type, body)
    return body


def keyed(count):
    return st.fixed_dictionaries({"k": NAMES | st.integers(0, 2)}, optional={"v": VALUES})


def pieces_of(messages):
    return st.lists(st.lists(messages, min_size=1, max_size=4), min_size=1, max_size=4)


@given(pieces_of(VALUES))
def test_merge_patches_in_pieces_come_to_the_same(pieces):
    whole = [each for piece in pieces for each in piece]
    assert in_goes(MergePatches(), pieces) == fold(MergePatches(), [whole])
    assert fold(MergePatches(), pieces) == fold(MergePatches(), [whole])


@given(st.lists(st.dictionaries(NAMES, SCALARS | st.just("{")) | VALUES, max_size=6))
def test_merge_patches_are_merged_one_after_the_other(patches):
    """Patches without objects and nulls in them have a way of their own."""
    expected = merge_all({}, patches)
    assert json.loads(fold(MergePatches(), [patches]).data) == expected


@given(pieces_of(st.builds(lambda n, v: {"op": "add", "path": f"/{n}", "value": v}, NAMES, VALUES)))
def test_json_patches_in_pieces_come_to_the_same(pieces):
    whole = [each for piece in pieces for each in piece]
    assert in_goes(JsonPatches(), pieces) == fold(JsonPatches(), [whole])


@given(pieces_of(keyed(3)), st.booleans())
def test_values_by_key_in_pieces_come_to_the_same(pieces, parts):
    by_key = LastByKey(("k",), ("v",) if parts else ())
    whole = [each for piece in pieces for each in piece]
    assert in_goes(by_key, pieces) == fold(by_key, [whole])


@given(pieces_of(VALUES))
def test_concatenated_json_in_pieces_comes_to_the_same(pieces):
    whole = [each for piece in pieces for each in piece]
    body = in_goes(Concatenation(), pieces)
    assert body == fold(Concatenation(), [whole])
    assert json.loads(body.data) == json.loads(json.dumps(whole))


@given(pieces_of(st.binary(min_size=1, max_size=5)))
def test_concatenated_bytes_in_pieces_come_to_the_same(pieces):
    body = in_goes(Concatenation(), pieces, "image/png")
    assert body == SnapshotBody(b"".join(b"".join(piece) for piece in pieces), "image/png")


@given(pieces_of(VALUES))
def test_a_function_in_pieces_comes_to_the_same(pieces):
    def counting(state, message):
        return {"count": (state or {"count": 0})["count"] + 1, "last": message}

    whole = [each for piece in pieces for each in piece]
    assert in_goes(UserFunction(counting), pieces) == fold(UserFunction(counting), [whole])


def test_merge_patches_start_with_an_empty_object():
    assert fold(MergePatches(), [[{"a": 1, "b": {"c": None}}]]) == SnapshotBody(
        b'{"a":1,"b":{}}', JSON
    )


def test_messages_of_byte_streams_may_be_json_each():
    assert fold(MergePatches(), [[b'{"a":1}', b' {"b":2}']], "text/plain").data == b'{"a":1,"b":2}'
    with pytest.raises(FoldError) as caught:
        # Joined they would be JSON.
        fold(MergePatches(), [[b'{"z":1}', b"[1", b"2],3"]], "text/plain")
    assert caught.value.index == 1


@pytest.mark.parametrize("bad", [b"{", b"1 2", b"\xff", b"1e999", b"[" * 5000 + b"]" * 5000])
def test_what_is_no_json_is_found(bad):
    with pytest.raises(FoldError) as caught:
        fold(MergePatches(), [[b"1", b"2", bad, b"3"]])
    assert caught.value.index == 2


def test_a_patch_that_fails_is_found():
    patches = [{"op": "add", "path": "/a", "value": 1}, {"op": "remove", "path": "/b"}]
    with pytest.raises(FoldError, match="non-existent object 'b'") as caught:
        fold(JsonPatches(), [patches])
    assert caught.value.index == 1


def test_json_patches_may_be_arrays():
    patch = [{"op": "add", "path": "/a", "value": []}, {"op": "add", "path": "/a/-", "value": 1}]
    assert fold(JsonPatches(), [[patch]]).data == b'{"a":[1]}'


def test_the_last_value_of_each_key():
    messages = [
        {"user": {"id": "x"}, "n": 1},
        {"user": {"id": 7}, "n": 2},
        {"user": {"id": "x"}, "n": 3},
        {"user": {"id": True}, "n": 4},
    ]
    found = fold(LastByKey(("user", "id"), ("n",)), [messages])
    assert json.loads(found.data) == {"x": 3, "7": 2, "true": 4}
    assert json.loads(fold(LastByKey(("user", "id")), [messages]).data)["x"] == messages[2]


def test_tombstones_and_nulls_delete():
    by_key = LastByKey(("k",), ("v",), ("gone",))
    kept = [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "c", "v": 3}, {"k": "d", "v": 4}]
    deleted = [
        {"k": "a", "v": None},
        {"k": "b"},
        {"k": "c", "v": 5, "gone": True},
        {"k": "d", "v": 6, "gone": False},
    ]
    assert fold(by_key, [kept, deleted]).data == b'{"d":6}'


@pytest.mark.parametrize("message", [{}, {"k": None}, {"k": {}}, {"k": [1]}, 5, "k"])
def test_a_message_without_a_key_does_not_fit(message):
    with pytest.raises(FoldError, match="no text or number as its key at 'k'") as caught:
        fold(LastByKey(("k",)), [[{"k": 1}, message]])
    assert caught.value.index == 1


def test_concatenated_json_keeps_its_texts():
    messages = [b'{"a" : 1e2}', b"[ ]", b"1e999"]
    assert fold(Concatenation(), [messages]).data == b'[{"a" : 1e2},[ ],1e999]'
    assert fold(Concatenation(), [[b"1"]], before=SnapshotBody(b" [ ] ", JSON)).data == b"[1]"


@pytest.mark.parametrize(
    ("fold_", "content_type", "before"),
    [
        (MergePatches(), JSON, SnapshotBody(b"not json", "text/plain")),
        (JsonPatches(), JSON, SnapshotBody(b"", JSON)),
        (LastByKey(("k",)), JSON, SnapshotBody(b"[]", JSON)),
        (Concatenation(), JSON, SnapshotBody(b"{}", JSON)),
        (Concatenation(), "text/plain", SnapshotBody(b"x", BYTES)),
        (UserFunction(max), JSON, SnapshotBody(b"\xff", "text/plain")),
        (UserFunction(max), JSON, SnapshotBody(b"{", JSON)),
    ],
)
def test_a_snapshot_that_is_something_else_does_not_fit(fold_, content_type, before):
    with pytest.raises(FoldError, match="snapshot"):
        fold_.begin(content_type, before)


@pytest.mark.parametrize(
    ("returned", "body"),
    [
        (b"bytes", SnapshotBody(b"bytes", BYTES)),
        (bytearray(b"bytes"), SnapshotBody(b"bytes", BYTES)),
        ("text", SnapshotBody(b"text", "text/plain; charset=utf-8")),
        ([1, "a"], SnapshotBody(b'[1,"a"]', JSON)),
        (None, SnapshotBody(b"null", JSON)),
    ],
)
def test_what_a_function_returns_decides_the_type(returned, body):
    found = UserFunction(lambda _state, _message: returned)
    assert fold(found, [[1]]) == body
    assert found.begin(JSON, body) == (bytes(returned) if body.content_type == BYTES else returned)


def test_a_function_is_given_bytes_of_byte_streams():
    joined = UserFunction(lambda state, message: (state or b"") + message)
    assert fold(joined, [[b"a", b"b"]], "text/plain") == SnapshotBody(b"ab", BYTES)


def test_a_function_that_raises_does_not_fit():
    def failing(state, message):
        if message == 3:
            raise KeyError("three")
        return message

    with pytest.raises(FoldError, match="The function raised KeyError: 'three'") as caught:
        fold(UserFunction(failing), [[1, 2, 3]])
    assert caught.value.index == 2


def test_a_state_that_is_no_json_does_not_fit():
    with pytest.raises(FoldError, match="cannot be written as JSON"):
        fold(UserFunction(lambda _state, _message: object()), [[1]])


def test_functions_by_name():
    assert load_function("operator:concat")([1], [2]) == [1, 2]
    assert load_function("json:JSONEncoder.default") is json.JSONEncoder.default
    with pytest.raises(SettingsError, match=r"There is no module 'no_such_module'"):
        load_function("no_such_module:fold")
    with pytest.raises(SettingsError, match=r"The module 'json' has no function 'fold'"):
        load_function("json:fold")


@pytest.mark.parametrize("name", ["fold", ":fold", "a:", "a b:c", "a:b c", "a:b:c", "a..b:c"])
def test_what_is_no_name_of_a_function(name):
    assert not is_function_name(name)


def test_paths():
    assert parse_path("user.id", "key") == ("user", "id")
    assert parse_path("/user/i~1d", "key") == ("user", "i/d")
    for wrong in ("", "a..b", ".a", "/~"):
        with pytest.raises(SettingsError, match="'key' is a path"):
            parse_path(wrong, "key")
