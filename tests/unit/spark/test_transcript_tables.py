"""The tables of `transcripts` without a server: rows, days, what is kept for the next run."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SettingsError, StoreError
from holdfast.protocol.frames import Outcome
from holdfast.protocol.llm_events import ModelResponse
from holdfast.settings.options import build
from holdfast.spark.archiving.files import FileOutput, TableFiles
from holdfast.spark.archiving.table import ListedFile
from holdfast.spark.jobs.transcripts import DailyFigures, Transcripts
from holdfast.spark.transcribing import tables
from holdfast.spark.transcribing.responses import (
    OpenResponse,
    OpenStream,
    TranscribedResponse,
    forget_before,
    read_open,
    write_open,
)
from holdfast.spark.transcribing.tables import (
    NAMES,
    Daily,
    ResponseLayout,
    counted,
    quantiles,
    read_daily,
    to_batch,
    write_daily,
)
from tests.spark.archiving import Here
from tests.unit.spark.archived import NOON_MS, place_at

DAY = "2031-05-19"
PLAIN = TranscribedResponse("s", 1, NOON_MS, NOON_MS + 1000, Outcome.COMPLETE, 200, {}, 3, b"abc")
SAID = replace(PLAIN, answer=ModelResponse("openai", "Hi", "gpt", "stop", 10, 2, 12))


def files_of(place, *batches):
    output = FileOutput(place, "", "x", ResponseLayout(), True, "zstd", 1 << 20)
    found = []
    for number, batch in enumerate(batches):
        with TableFiles(output, number) as files:
            files.write(DAY, to_batch(batch))
        found += files.written
    return tuple(ListedFile(each.path, each.date, each.size_bytes) for each in found)


def test_a_day_is_counted_over_all_its_files(tmp_path, monkeypatch):
    place = place_at(tmp_path)
    took = [replace(SAID, response_id=at, ended_at_ms=NOON_MS + at * 100) for at in range(1, 101)]
    others = [
        replace(PLAIN, outcome=Outcome.OPEN, ended_at_ms=None, body=None),
        replace(SAID, outcome=Outcome.ABORTED, ended_at_ms=NOON_MS + 5050),
        replace(SAID, answer=ModelResponse("anthropic", "", "claude")),
    ]
    files = files_of(place, took, others)
    with monkeypatch.context() as patch:
        # Each file is a task.
        patch.setattr(tables, "_TASK_BYTES", 1)
        found = counted(Here(), place, Listed(files), Daily(), None)
    assert found == counted(Here(), place, Listed(files), Daily(), {DAY})
    by_model = {each.model: each for each in found}
    assert set(by_model) == {None, "gpt", "claude"}
    gpt = by_model["gpt"]
    assert (gpt.responses, gpt.complete, gpt.aborted, gpt.failed, gpt.open) == (101, 100, 1, 0, 0)
    assert (gpt.bytes, gpt.prompt_tokens, gpt.completion_tokens) == (303, 1010, 202)
    assert gpt.total_tokens == 1212
    assert gpt.duration_p50_s == pytest.approx(5.05)
    assert gpt.duration_p95_s == pytest.approx(9.5)
    assert by_model[None] == DailyFigures(DAY, None, 1, 0, 0, 0, 1, 3, 0, 0, 0, None, None)
    assert by_model["claude"].total_tokens == 0


class Listed(NamedTuple):
    """A table with these files."""

    found: tuple

    def files(self):
        return self.found


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=200))
def test_quantiles_of_counts_are_those_of_the_values(values):
    expected = np.percentile(values, [50, 95]).round() / 1000
    assert quantiles(Counter(values)) == pytest.approx(tuple(expected), abs=0.001)


def test_the_summary_is_kept_with_its_cursor(tmp_path):
    place = place_at(tmp_path)
    assert read_daily(place) == Daily()
    rows = [
        DailyFigures(DAY, None, 1, 0, 0, 0, 1, 3, 0, 0, 0, None, None),
        DailyFigures(DAY, "gpt", 2, 2, 0, 0, 0, 9, 1, 2, 3, 0.5, 0.75),
    ]
    write_daily(place, Daily("7", rows))
    assert read_daily(place) == Daily("7", rows)
    for damaged in (b"", b"PAR1", b"x" * 100):
        (tmp_path / "daily.parquet").write_bytes(damaged)
        assert read_daily(place) == Daily()


def test_columns_hold_what_there_is():
    row = to_batch([replace(SAID, headers={"content-type": "text/x", "a": "b"})]).to_pylist()[0]
    assert tuple(row) == NAMES
    assert (row["content_type"], row["headers"]) == (
        "text/x",
        [("content-type", "text/x"), ("a", "b")],
    )
    assert (row["text"], row["tool_calls"], row["body_truncated"]) == ("Hi", 0, False)
    gone = to_batch([replace(PLAIN, headers=None, body=None, status=None)]).to_pylist()[0]
    assert (gone["headers"], gone["body"], gone["body_truncated"]) == (None, None, True)


def test_what_is_not_over_is_kept_for_each_cursor(tmp_path):
    place = place_at(tmp_path)
    assert read_open(place, "") == []
    streams = [OpenStream("s", 3, 9, [OpenResponse(1, 5, 200, 3, 2, 7)])]
    for until in ("01", "02", "03"):
        write_open(place, until, streams)
    forget_before(place, "02")
    assert read_open(place, "02") == read_open(place, "03") == streams
    with pytest.raises(StoreError, match=r"^_holdfast/open/01.json of the table at .* is missing"):
        read_open(place, "01")
    (tmp_path / "_holdfast" / "open" / "02.json").write_bytes(b"[{")
    with pytest.raises(StoreError, match=r"is missing or damaged: "):
        read_open(place, "02")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"body_bytes_max": "much"}, "'body_bytes_max' is a number of bytes such as 64m"),
        ({"body_bytes_max": "2g"}, "'body_bytes_max' is at most 1g, not '2g'."),
        ({"file_size": "0"}, "'file_size' is a number of bytes such as 64m, not '0'."),
        ({"streams": ["a"], "stream_pattern": "b"}, "Give either 'streams' or 'stream_pattern'"),
        ({"stream_pattern": "("}, "'stream_pattern' is no regular expression"),
        ({"compact_files": 1}, "'compact_files' is 0, or at least 2."),
        ({"catalog": "c"}, "'catalog' and its options are for format = \"iceberg\"."),
    ],
)
def test_wrong_options_are_said_in_one_sentence(options, words):
    with pytest.raises(SettingsError) as caught:
        build(Transcripts, {"to": "/x"} | options)
    assert caught.value.message.startswith(words)


def test_bodies_may_be_left_out():
    assert build(Transcripts, {"to": "/x", "body_bytes_max": "0"}).kept_bytes_max == 0
    assert build(Transcripts, {"to": "/x"}).kept_bytes_max == 1 << 20


def test_the_options_are_read_without_spark_or_arrow():
    code = (
        "import sys, holdfast.spark.jobs.transcripts as a; "
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'deltalake', 'pyiceberg'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
