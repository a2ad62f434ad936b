"""The report's page: what it says, from figures made by hand."""

import re
from html.parser import HTMLParser

from holdfast.spark.jobs.report_figures import (
    REST,
    MessageFigures,
    MessageTotals,
    ModelFigures,
    Ranked,
    ResponseFigures,
)
from holdfast.spark.jobs.report_page import (
    Section,
    Tile,
    legend,
    message_sections,
    message_tiles,
    page,
    response_sections,
    response_tiles,
    table,
)

DAY_S = 86_400
START_S = 20_000 * DAY_S


def responses(**changes):
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
            ModelFigures("gpt", 7, 6, 90_000, 10_000, 2.5, 40.0),
            ModelFigures(None, 3, 0, 0, 0, None, None),
        ],
        "models_in_all": 5,
    }
    return ResponseFigures(**values | changes)


def messages(**changes):
    """One burst: 700 messages within three seconds."""
    values = {
        "totals": MessageTotals(700, 70_000, 9, 1, START_S, START_S + 3, 0),
        "buckets": [Ranked("events", "", 9, 700, 70_000, START_S + 3)],
        "busiest": [Ranked("events", "a", 1, 100, 10_000, START_S + 3)],
        "largest": [Ranked("events", "a", 1, 100, 10_000, None)],
        "sizes": {-1: 2, 12: 5, 13: 2},
        "rate_step_s": 60,
        "rates": {START_S: 700},
        "volume_step_s": DAY_S,
        "volumes": {("events", START_S): 70_000},
    }
    return MessageFigures(**values | changes)


class Reader(HTMLParser):
    """Collects texts and tags, and complains of what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def said(section):
    return "".join(section.content)


def test_the_page_is_whole_and_refers_to_nothing_outside():
    text = page(
        "<Title>",
        "a subtitle",
        [Tile("Messages", "12", "note")],
        [
            Section("One & two", [table(["A"], [["<script>\0"]], ["word"]), legend([("x", "s0")])]),
            *message_sections(messages()),
            *response_sections(responses()),
        ],
        "Made today.",
    )
    found = Reader(text)
    assert "<Title>" in found.texts
    assert "<script>\ufffd" in found.texts
    assert "script" not in {tag for tag, _ in found.tags}
    assert not re.search(r"https?:|url\((?!#)|@import|src=|href=\"(?!#)", text)
    assert ("section", {"id": "one-&-two"}) in found.tags


def test_the_same_figures_give_the_same_page():
    one, two = (page("a", "b", [], message_sections(messages()), "c") for _ in range(2))
    assert one == two


def test_a_section_of_a_users_own_is_escaped_unless_it_is_markup():
    text = page("a", "b", [], [Section("c", ["<b>"], "<i>")], "d")
    assert "&lt;b&gt;" in text
    assert "&lt;i&gt;" in text


def test_one_burst_is_shown_and_makes_no_rate():
    tiles = {each.name: (each.value, each.note) for each in message_tiles(messages())}
    assert tiles["Period"] == ("1 day", "all within 3 s")
    volume, rate, sizes, *_ = message_sections(messages())
    assert "events: 68.4 KiB" in said(volume)
    assert rate.note == "At most 700 per minute: 2024-10-04 00:00 to 00:01."
    assert "700 messages per minute" in said(rate)
    assert sizes.note.endswith(" 2 empty streams are left out.")
    assert "4 KiB to 8 KiB\n5 streams" in said(sizes)


def test_a_rate_is_the_mean_of_an_hour_or_more():
    total = MessageTotals(700, 70_000, 9, 1, START_S, START_S + 7 * 3600, 0)
    assert message_tiles(messages(totals=total))[-1].note == "100 messages an hour"


def test_points_are_counts_of_what_they_stand_for():
    rate = message_sections(messages(rate_step_s=900, rates={START_S: 30, START_S + 1800: 60}))[1]
    assert rate.note == "At most 60 per 15 minutes: 2024-10-04 00:30 to 00:45."
    assert "0 messages per 15 minutes" in said(rate)


def test_messages_without_a_time():
    total = MessageTotals(700, 70_000, 9, 1, None, None, 700)
    figures = messages(totals=total, rates={}, volumes={})
    assert "Period" not in {each.name for each in message_tiles(figures)}
    assert message_sections(figures)[0].anchor == "sizes"
    total = MessageTotals(700, 70_000, 9, 1, START_S, START_S, 8)
    assert message_sections(messages(totals=total))[0].note.startswith("8 messages without a time")


def test_all_sections_about_responses():
    outcomes, tokens, times, models = response_sections(responses())
    assert [each.anchor for each in (outcomes, tokens, times)] == [
        "responses",
        "tokens",
        "durations",
    ]
    text = said(outcomes)
    for name, colour in (("complete", "s0"), ("aborted", "s1"), ("failed", "s2"), ("open", "rest")):
        assert f'<i style="background: var(--{colour})"></i>{name}' in text
    assert "complete: 6\nall: 9" in text
    assert "gpt: 100 k" in said(tokens)
    assert f'<i style="background: var(--rest)"></i>{REST}' in said(tokens)
    assert "0 ms to 3.9 ms\n3 responses" in said(times)
    assert "no model" in said(models)
    assert models.note == "Those with the most tokens; 3 more are not listed."


def test_what_there_is_not_is_not_shown():
    assert response_sections(responses(responses=0, outcomes={})) == []
    without = response_sections(responses(model_tokens={}, durations={}))
    assert [each.anchor for each in without[:2]] == ["responses", "durations"]
    assert without[1].content == []


def test_tiles():
    tiles = response_tiles(responses())
    assert [(each.name, each.value, each.note) for each in tiles] == [
        ("Responses", "10", "60.0% complete"),
        ("Tokens", "123 k", "123,456"),
        ("Median time", "2.5 s", "of a response"),
    ]
    assert len(response_tiles(responses(p50_s=None))) == 2
