"""`holdfast read` and `tail`: which messages, how they are written, and when."""

import json

import pytest

from tests.cli.holdfast_command import DEADLINE_S, interrupt
from tests.client.node_process import node_server
from tests.thorough import some_of

JSON = "application/json"
FRAMED = ("--framing", "length-prefixed")


def offset(number):
    return f"{number:020d}"


@pytest.fixture
def numbers(command, new_stream):
    """A stream of five messages of two bytes each."""
    stream = new_stream()
    command("append", stream, "1\n", "2\n", "3\n", "4\n", "5\n")
    return stream


@pytest.mark.parametrize(
    ("flags", "printed", "next_offset"),
    [
        ((), "1\n2\n3\n4\n5\n", 10),
        (("--from", "-1", "--exit", "-f"), "1\n2\n3\n4\n5\n", 10),
        (("--from", offset(4)), "3\n4\n5\n", 10),
        (("--from", "now"), "", 10),
        (("--from", "now", "--count", "1"), "", 10),
        (("--count", "2"), "1\n2\n", 4),
        (("--count", "0", "--from", offset(4)), "", 4),
        (("--count", "9"), "1\n2\n3\n4\n5\n", 10),
        (("--until", offset(6)), "1\n2\n3\n", 6),
        (("--from", "4"), "3\n4\n5\n", 10),
        (("--from", "2", "--until", "6"), "2\n3\n", 6),
        (("--until", offset(7)), "1\n2\n3\n", 6),
        (("--until", offset(1)), "", 0),
        (("--from", offset(2), "--until", offset(8), "--count", "2"), "2\n3\n", 6),
    ],
)
def test_which_messages_are_read(command, numbers, flags, printed, next_offset):
    done = command.run("read", numbers, *flags)
    assert (done.returncode, done.stdout) == (0, printed)
    assert done.stderr == f"next offset {offset(next_offset)}\n"


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        ((), "1\n2\n3\n4\n5\n"),
        (("-n", "2"), "4\n5\n"),
        (("-n", "0"), ""),
        (("-n", "99"), "1\n2\n3\n4\n5\n"),
    ],
)
def test_the_last_messages(command, numbers, flags, printed):
    done = command.run("tail", numbers, *flags)
    assert (done.returncode, done.stdout) == (0, printed)
    assert done.stderr == f"next offset {offset(10)}\n"


@pytest.mark.parametrize("until", ["-6", "0" * 21, "end", "now"])
def test_an_end_that_is_no_offset_is_refused(command, numbers, until):
    done = command.run("read", numbers, f"--until={until}", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr)["error"]["code"] == "invalid_offset"


def test_text_and_bytes_come_as_they_are(command, new_stream):
    for content_type in ("text/plain", "application/octet-stream"):
        stream = new_stream(content_type)
        command("append", stream, stdin=b"a\0\xff\r\n")
        assert command("read", stream) == "a\0\udcff\r\n"
        (document,) = command.json("read", stream)
        assert document["base64"] == "YQD/DQo="


def test_json_comes_one_message_a_line_as_it_is_stored(command, new_stream):
    stream = new_stream(JSON)
    command("append", stream, stdin='{"a":\r\n  [1e999, 12345678901234567890123]}')
    text = '{"a":    [1e999, 12345678901234567890123]}'
    assert command("read", stream) == text + "\n"
    (line,) = command("read", stream, "--json").splitlines()
    assert line == f'{{"offset":"{offset(0)}","next_offset":"{offset(43)}","json":{text}}}'


def test_framed_messages_come_one_a_line(command, new_stream):
    stream = new_stream("application/octet-stream")
    command("append", stream, "a", "bc", *FRAMED)
    assert command("read", stream, *FRAMED) == "a\nbc\n"
    # Both were in one append.
    assert command("tail", stream, *FRAMED, "-n", "1") == "bc\n"
    (first, second) = command.json("read", stream, *FRAMED)
    assert (first["next_offset"], second["base64"]) == (offset(5), "YmM=")


@pytest.mark.parametrize(
    "verb", some_of([("read", "--from", "now"), ("tail", "-n", "1"), ("bootstrap",)], 1)
)
def test_what_follows_is_written_as_it_comes_until_the_stream_is_closed(command, new_stream, verb):
    stream = new_stream()
    command("append", stream, "old\n")
    with command.start(verb[0], stream, *verb[1:], "-f") as reader:
        if verb[0] != "read":
            assert reader.stdout.readline() == b"old\n"
        else:
            _wait_for_a_reader(command)
        for line in ("one\n", "two\n"):
            command("append", stream, line)
            assert reader.stdout.readline() == line.encode()
        command("close", stream)
        rest, _ = reader.communicate(timeout=DEADLINE_S)
    assert (reader.returncode, rest) == (0, b"")


def _wait_for_a_reader(command):
    """Until the server has somebody who waits for news."""
    import httpx

    while True:
        text = httpx.get(f"{command.env['HOLDFAST_URL']}/metrics").text
        if any(
            line.startswith("holdfast_live_readers") and not line.endswith(" 0.0")
            for line in text.splitlines()
        ):
            return


def test_ctrl_c_ends_a_live_read(command, numbers):
    for verb in (("read", "-f"), ("tail", "-f"), ("tail", "-f", "--json")):
        with command.start(verb[0], numbers, *verb[1:]) as reader:
            assert reader.stdout.readline()
            assert interrupt(reader) == (130, "")


def test_count_ends_a_live_read(command, numbers):
    assert command("read", numbers, "-f", "--count", "3") == "1\n2\n3\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_ends_it_quietly(command, new_stream, unbuffered):
    stream = new_stream()
    command("append", stream, stdin="line\n" * 200_000)
    here = command.with_env(PYTHONUNBUFFERED=unbuffered)
    done = here.shell(f"holdfast read {stream} | head -1; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stdout, done.stderr) == (141, "line\n", "")


def test_a_disk_that_is_full(command, numbers):
    done = command.shell(f"holdfast read {numbers} > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


def test_a_snapshot_takes_the_place_of_messages(command, numbers):
    command("snapshot", "publish", numbers, offset(4), "-", stdin="state")
    done = command.run("read", numbers)
    assert (done.returncode, offset(4) in done.stderr) == (3, True)
    assert command("snapshot", "get", numbers) == "state"
    assert command("bootstrap", numbers) == "state3\n4\n5\n"


def test_a_snapshot_whose_type_promises_too_much(command, numbers):
    flags = ("--content-type", JSON)
    command("snapshot", "publish", numbers, offset(2), *flags, stdin="{not json")
    (document,) = command.json("snapshot", "get", numbers)
    assert document["base64"] == "e25vdCBqc29u"


def test_another_server(command):
    """One that can neither start at the last messages nor tell where messages end."""
    with node_server() as url:
        here = command.with_env(HOLDFAST_URL=url)
        here("create", "plain", "--content-type", JSON)
        assert here.json("append", "plain", "1", "2", "3")[0]["messages"] == 3
        assert here("tail", "plain", "-n", "2") == "2\n3\n"
        assert here("read", "plain") == "1\n2\n3\n"
        assert json.loads(here("info", "plain", "--json"))["content_type"] == JSON
        # It has no buckets.
        assert here.run("ls").returncode in {1, 3, 6}
