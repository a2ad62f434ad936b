"""Columns for the fields of JSON messages: as given, as found, and what does not fit them."""

import datetime as dt
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import SettingsError
from holdfast.spark.archiving.layout import (
    COLUMNS_MAX,
    RAW,
    RESERVED,
    REST,
    JsonColumns,
    column_of,
    fields_of,
    given_columns,
    inferred_columns,
    new_columns,
)
from tests.thorough import examples

UTC = dt.UTC


def parse(columns, *messages, noticing=True):
    parser = JsonColumns(columns, noticing=noticing)
    texts = [None if each is None else each.encode() for each in messages]
    arrays = parser.arrays(texts)
    names = [each.name for each in fields_of(columns)]
    assert [each.type for each in arrays] == [each.type for each in fields_of(columns)]
    rows = [
        dict(zip(names, row, strict=True))
        for row in zip(*(each.to_pylist() for each in arrays), strict=True)
    ]
    return rows, parser


def test_types_may_be_named_as_spark_python_and_arrow_do():
    words = {"a": "BIGINT", "b": "str", "c": "bool", "d": "float64", "e": "integer", "f": "json"}
    kinds = ["long", "string", "boolean", "double", "int", "json"]
    assert list(given_columns(words).values()) == kinds


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"a": "struct<b:int>"}, "'schema': the type of 'a' is one of string, int, long"),
        ({"a b": "string"}, "'schema': 'a b' cannot be a column"),
        ({"a": "string", "A": "string"}, "'schema': 'A' cannot be a column"),
        ({REST: "string"}, "'schema': '_rest' cannot be a column"),
    ],
)
def test_what_cannot_be_a_column_is_refused(schema, words):
    with pytest.raises(SettingsError) as caught:
        given_columns(schema)
    assert caught.value.message.startswith(words)


def test_fields_are_found_in_messages():
    messages = [
        b'{"id": 1, "name": "x", "ok": true, "none": null, "deep": {"a": 1}}',
        b'{"id": 2.5, "tags": [1], "mixed": 1}',
        b'{"mixed": "one", "big": 99999999999999999999, "no good": 1, "NAME": 2}',
        b"[1, 2]",
        b'"text"',
    ]
    assert inferred_columns(messages) == {
        "id": "double",
        "name": "string",
        "ok": "boolean",
        "none": "json",
        "deep": "json",
        "tags": "json",
        "mixed": "json",
        "big": "json",
    }


def test_there_is_an_end_to_columns():
    many = json.dumps({f"f{number}": 1 for number in range(COLUMNS_MAX + 50)}).encode()
    found = inferred_columns([many])
    assert len(found) == COLUMNS_MAX
    assert new_columns(found, {"another": "long"}) == {}


def test_names_that_are_taken_get_an_underscore():
    rows, _ = parse({"timestamp": "string", "Offset": "long"}, '{"timestamp":"now","Offset":7}')
    assert rows == [{"timestamp_": "now", "Offset_": 7, REST: None, RAW: None}]
    assert {column_of(name) for name in RESERVED} & RESERVED == {REST, RAW}


def test_every_kind_is_read():
    columns = given_columns(
        {
            "s": "string",
            "i": "int",
            "l": "long",
            "d": "double",
            "b": "boolean",
            "t": "timestamp",
            "day": "date",
            "j": "json",
        }
    )
    full = (
        '{"s":"ü\\n","i":-1,"l":9223372036854775807,"d":1,"b":false,'
        '"t":"2031-05-17T12:00:00.25+02:00","day":"2031-05-17","j":{"a":[1, 2]}}'
    )
    rows, parser = parse(columns, full, "{}", '{"s":null,"j":null}', None)
    at = dt.datetime(2031, 5, 17, 10, 0, 0, 250_000, UTC)
    values = ["ü\n", -1, 2**63 - 1, 1.0, False, at, dt.date(2031, 5, 17), '{"a":[1, 2]}']
    assert list(rows[0].values()) == [*values, None, None]
    assert [set(each.values()) for each in rows[1:]] == [{None}] * 3
    assert (parser.raw_rows, parser.rest_rows) == (0, 0)


@pytest.mark.parametrize("message", ["[1]", "null", "7", '"\\ud800"', '{"n":1,"t":"\\ud800"}'])
def test_a_message_that_is_no_valid_object_is_kept_as_it_is(message):
    rows, parser = parse({"n": "long", "t": "timestamp"}, '{"n":1}', message, '{"n":2}')
    assert [each["n"] for each in rows] == [1, None, 2]
    assert rows[1] == {"n": None, "t": None, REST: None, RAW: message}
    assert (parser.raw_rows, parser.rest_rows) == (1, 0)


@pytest.mark.parametrize(
    ("message", "kept", "rest"),
    [
        ('{"n":"1","s":"x"}', (None, "x"), '{"n":"1"}'),
        ('{"n":1.5,"s":"x"}', (None, "x"), '{"n":1.5}'),
        ('{"n":9223372036854775808}', (None, None), '{"n":9223372036854775808}'),
        ('{"n":1,"t":"yesterday","s":"x"}', (1, "x"), '{"t":"yesterday"}'),
        ('{"n":"1","other":1,"s":"x"}', (None, "x"), '{"n":"1","other":1}'),
    ],
)
def test_only_the_field_that_does_not_fit_goes_to_the_side(message, kept, rest):
    rows, parser = parse({"n": "long", "t": "timestamp", "s": "string"}, '{"n":1}', message)
    assert (rows[1]["n"], rows[1]["s"]) == kept
    assert (rows[1]["t"], rows[1][REST], rows[1][RAW]) == (None, rest, None)
    assert (parser.raw_rows, parser.rest_rows) == (0, 1)


def test_columns_that_are_too_narrow_are_reported():
    columns = {"i": "int", "n": "long", "s": "string"}
    _, parser = parse(columns, '{"i":4294967296,"n":1.5,"s":7}', '{"i":"x"}')
    # Whole numbers do not become floating-point ones, and text stays text.
    assert (parser.wider, parser.unknown) == ({"i": "long"}, {})
    assert parse(columns, '{"i":4294967296}', noticing=False)[1].wider == {}


def test_fields_without_a_column_are_kept_together():
    rows, parser = parse(
        {"n": "long"}, '{"x": {"y": [1.50]}, "n": 1, "z": null}', '{"n":2,"a b":"c"}'
    )
    assert [each["n"] for each in rows] == [1, 2]
    assert [each[REST] for each in rows] == ['{"x":{"y": [1.50]},"z":null}', '{"a b":"c"}']
    assert (parser.raw_rows, parser.rest_rows) == (0, 2)
    assert parser.unknown == {"x": "json", "z": "", "a b": "string"}
    assert new_columns({"n": "long"}, parser.unknown) == {"x": "json", "z": "json"}
    assert parse({"n": "long"}, '{"x":1}', noticing=False)[1].unknown == {}


def test_without_columns_everything_is_rest():
    rows, _ = parse({}, '{"x":1}', "{}", None)
    assert [each[REST] for each in rows] == ['{"x":1}', None, None]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=5)
    | st.floats(-9, 9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c", "A", "timestamp", "x y"]), VALUES)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(OBJECTS | VALUES, min_size=1, max_size=5), st.integers(0, 4))
def test_nothing_is_lost(values, sampled):
    messages = [json.dumps(each) for each in values]
    columns = inferred_columns(each.encode() for each in messages[:sampled])
    rows, _ = parse(columns, *messages)
    for value, row in zip(values, rows, strict=True):
        assert restored(row, columns, value) == value


def restored(row, columns, like):
    """The message that a row was made of; null and missing are told apart by `like`."""
    if row[RAW] is not None:
        return json.loads(row[RAW])
    found = json.loads(row[REST]) if row[REST] is not None else {}
    for field, kind in columns.items():
        value = row[column_of(field)]
        if value is not None:
            found[field] = json.loads(value) if kind == "json" else value
        elif field in like:
            found.setdefault(field, None)
    return found
