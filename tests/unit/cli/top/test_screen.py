"""The view and how it is drawn, in terminals of all sizes."""

import io

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from holdfast.cli.terminal import as_clock_time
from holdfast.cli.top.measure import (
    BackpressureFigures,
    CommitFigures,
    Figures,
    FlushFigures,
    HottestStream,
    measure,
)
from holdfast.cli.top.rows import plain
from holdfast.cli.top.screen import Screen, View
from tests.thorough import THOROUGH, for_each
from tests.unit.cli.top.samples import sample

URL = "http://127.0.0.1:4437"
BEFORE, AFTER = sample(0), sample(1, appends=1234, fast=100, refused=2)
FIGURES = measure(URL, BEFORE, AFTER)
AWAY = Figures(
    at_ms=FIGURES.at_ms + 9000,
    url=URL,
    reachable=False,
    unreachable_since_ms=FIGURES.at_ms + 5000,
    error="The server cannot be connected to: Connection refused.",
)


def drawn(view, width=80, height=24, encoding="utf-8"):
    """The lines that rich makes of a view."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(
        file=file, width=width, height=height, color_system=None, legacy_windows=False
    )
    console.print(Screen(view), end="")
    file.flush()
    return raw.getvalue().decode(encoding).splitlines()


def viewing(*figures):
    view = View(1.0)
    for each in figures:
        view.take(each)
    return view


def changed(**changes):
    return msgspec.structs.replace(FIGURES, **changes)


class TestSizes:
    @pytest.mark.thorough
    @for_each("width", [10, 20, 40, 71, 72, 80, 81, 120, 300] if THOROUGH else [10, 71, 80, 300])
    @for_each("height", [1, 2, 3, 5, 10, 14, 24, 60] if THOROUGH else [1, 5, 24])
    @for_each("encoding", ["utf-8", "ascii"])
    def test_it_never_overflows(self, width, height, encoding):
        view = viewing(FIGURES, AWAY)
        lines = drawn(view, width, height, encoding)
        assert len(lines) <= height
        assert max(cell_len(line) for line in lines) <= width

    def test_a_usual_terminal_shows_everything(self):
        text = "\n".join(drawn(viewing(FIGURES)))
        for figure in ("1,234/s", "121 KiB/s", "500 µs", "990 µs", "2.0/s", "2.00 KiB", "7.32 KiB"):
            assert figure in text
        for fact in ("holdfast 1.2.3", URL, "fsync", "single", "up 16 min 41 s", "q quit"):
            assert fact in text
        assert "demo/a" in text
        assert "_default" not in text

    def test_a_narrow_one_has_traffic_above_storage(self):
        lines = drawn(viewing(FIGURES), 40, 24)
        starts = [line.split(",")[0].split(" ")[0] for line in lines]
        assert starts.index("traffic") < starts.index("appends") < starts.index("storage")
        assert "back-pressure" in starts
        assert lines[-1].startswith("q quit")

    def test_a_tall_narrow_one_has_streams_too(self):
        text = "\n".join(drawn(viewing(FIGURES), 40, 40))
        assert "hottest streams" in text
        assert "demo/a" in text

    def test_a_low_one_keeps_the_first_rows_and_the_keys(self):
        lines = drawn(viewing(FIGURES), 80, 8)
        assert any("appends" in line for line in lines)
        assert not any("hottest" in line for line in lines)
        assert "q quit" in lines[-1]

    def test_a_plain_terminal_gets_plain_characters(self):
        text = "\n".join(drawn(viewing(FIGURES), encoding="ascii"))
        assert "500 us" in text
        assert "#" in text


class TestBanners:
    def test_a_server_that_is_away_leaves_its_last_figures(self):
        text = "\n".join(drawn(viewing(FIGURES, AWAY)))
        since = as_clock_time(AWAY.unreachable_since_ms)
        assert f"unreachable since {since}, retrying: The server cannot be" in text
        assert "1,234/s" in text

    def test_it_goes_once_the_server_is_back(self):
        assert not viewing(FIGURES, AWAY, FIGURES).banners()

    def test_one_that_does_not_answer_gets_it_too_and_keeps_it_until_it_does(self):
        view = viewing(FIGURES)
        view.wait(FIGURES.at_ms)
        assert "no response yet" in view.banners()[0][0]
        view.take(FIGURES)
        assert not view.banners()

    def test_a_restart_is_said_for_a_while(self):
        restarted = changed(restarted=True)
        soon, late = (changed(at_ms=FIGURES.at_ms + passed) for passed in (2000, 60_000))
        assert "was restarted" in "\n".join(drawn(viewing(restarted)))
        assert "was restarted" in "\n".join(drawn(viewing(restarted, soon)))
        assert "was restarted" not in "\n".join(drawn(viewing(restarted, soon, late)))

    def test_what_is_missing_is_said(self):
        figures = changed(missing=("/cluster/hot-cold-stats",))
        assert "not available here: /cluster/hot-cold-stats" in "\n".join(drawn(viewing(figures)))

    def test_trouble_is_said(self):
        figures = changed(
            backpressure=BackpressureFigures(active=True, reason="hot bytes", refused_per_s=5.0),
            flush=FlushFigures(in_progress=True, trouble="no such\x1b[2J bucket"),
            commits=CommitFigures(stalled=True, failures_per_s=1.0),
        )
        text = "\n".join(drawn(viewing(figures), 80, 40))
        for words in (
            "the log does not respond",
            "hot bytes",
            "refuses batches",
            "ON, refuses 5.0",
        ):
            assert words in text
        assert "no such?[2J bucket" in text
        assert "\x1b" not in text


class TestPause:
    def test_figures_stay_until_it_ends(self):
        later = measure(URL, AFTER, sample(2, appends=1234 + 4321))
        view = viewing(FIGURES)
        view.toggle_pause(FIGURES.at_ms)
        view.take(later)
        text = "\n".join(drawn(view))
        assert "paused at" in text
        assert "1,234/s" in text
        view.toggle_pause(later.at_ms)
        text = "\n".join(drawn(view))
        assert "paused" not in text
        assert "4,321/s" in text


class TestStreamNames:
    def test_markup_control_characters_and_wide_ones_do_no_harm(self):
        names = ["demo/[red]x[/]", "demo/\x1b[31mred", "demo/" + "長" * 100, "demo/" + "n" * 200]
        streams = tuple(HottestStream(stream=name, hot_bytes=1, tail=1) for name in names)
        lines = drawn(viewing(changed(hottest=streams)), 80, 30)
        assert any("[red]x[/]" in line for line in lines)
        assert "\x1b" not in "".join(lines)
        assert all(cell_len(line) <= 80 for line in lines)


class TestPlain:
    def test_one_line_for_each_figure(self):
        lines = plain(FIGURES).splitlines()
        assert lines[0].startswith(f"holdfast 1.2.3, {URL}, fsync, single, up ")
        figures = dict(
            line.split(None, 1) for line in lines if line.startswith(("appends", "hot "))
        )
        assert figures["appends"] == "1,234/s"
        assert lines[-1].split()[-1] == "b"

    def test_an_absent_server_is_one_line(self):
        (line,) = plain(AWAY).splitlines()
        assert "unreachable since" in line
        assert "Connection refused" in line

    def test_notices_stand_out(self):
        assert "! the server was restarted" in plain(changed(restarted=True))
