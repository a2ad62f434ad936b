"""What the report says of responses, from figures made by hand."""

import pytest

from holdfast.spark.jobs.markup import text_of
from holdfast.spark.jobs.report_figures import REST
from holdfast.spark.jobs.report_responses import (
    OfModel,
    ResponseFigures,
    response_sections,
    response_tiles,
)
from holdfast.spark.jobs.scales import seconds_text

DAY_S = 86_400
START_S = 20_000 * DAY_S


def figures(**changes):
    values = {
        "responses": 10,
        "streams": 4,
        "first_s": START_S,
        "last_s": START_S + 3 * DAY_S,
        "tokens": 123_456,
        "p50_s": 2.5,
        "step_s": DAY_S,
        "outcomes": {
            ("complete", START_S): 6,
            ("aborted", START_S): 2,
            ("failed", START_S + 2 * DAY_S): 1,
            ("open", START_S): 1,
        },
        "model_tokens": {("gpt", START_S): 100_000, (REST, START_S + 2 * DAY_S): 23_456},
        "durations": {-10: 3, 0: 4, 5: 3},
        "models": [
            OfModel("gpt", 7, 6, 90_000, 10_000, 2.5, 40.0),
            OfModel(None, 3, 0, 0, 0, None, None),
        ],
        "models_in_all": 5,
    }
    return ResponseFigures(**values | changes)


def said(section):
    return "".join(text_of(each) for each in section.content)


def test_all_sections():
    outcomes, tokens, times, models = response_sections(figures())
    assert [each.anchor for each in (outcomes, tokens, times)] == [
        "responses",
        "tokens",
        "durations",
    ]
    text = said(outcomes)
    for name, colour in (("complete", "s0"), ("aborted", "s1"), ("failed", "s2"), ("open", "rest")):
        assert f'<i class="{colour}"></i>{name}' in text
    assert "complete: 6\nall: 9" in text
    assert "gpt: 100 k" in said(tokens)
    assert f'<i class="rest"></i>{REST}' in said(tokens)
    assert "0 ms to 3.9 ms\n3 responses" in said(times)
    assert "no model" in said(models)
    assert models.note == "Those with the most tokens; 3 more are not listed."


def test_what_there_is_not_is_not_shown():
    assert response_sections(figures(responses=0, outcomes={})) == []
    without = response_sections(figures(model_tokens={}, durations={}))
    assert [each.anchor for each in without[:2]] == ["responses", "durations"]
    assert without[1].content == []


def test_tiles():
    tiles = response_tiles(figures())
    assert [(each.name, each.value, each.note) for each in tiles] == [
        ("Responses", "10", "60.0% complete"),
        ("Tokens", "123 k", "123,456"),
        ("Median time", "2.5 s", "of a response"),
    ]
    assert len(response_tiles(figures(p50_s=None))) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (0.00097, "1.0 ms"),
        (0.0156, "16 ms"),
        (0.5, "500 ms"),
        (1, "1 s"),
        (2.34, "2.3 s"),
        (64, "64 s"),
        (256, "4.3 min"),
        (8192, "2.3 h"),
        (10_000_000, "2778 h"),
    ],
)
def test_times_are_short(value, text):
    assert seconds_text(value) == text
