"""`holdfast append`: what becomes of arguments, files and stdin."""

import json
import re
import signal
import subprocess

import httpx
import pytest

from tests.cli.holdfast_command import DEADLINE_S, interrupt

JSON = "application/json"
FRAMED = ("--framing", "length-prefixed")


def payloads(command, stream, *flags):
    """The messages of a stream, each as it is stored."""
    documents = [
        json.loads(line) for line in command("read", stream, "--json", *flags).splitlines()
    ]
    return [
        next(each[key] for key in ("json", "text", "base64") if key in each) for each in documents
    ]


def append_requests(server):
    page = httpx.get(f"{server.url}/metrics").text
    found = re.search(r'requests_total\{route="append",status="200"\} (\S+)', page)
    return float(found[1]) if found else 0


def test_arguments_are_messages(command, new_stream):
    stream = new_stream()
    flags = ("--json", "--close")
    said = json.loads(command("append", stream, "one", *flags, "two ", "-3", "--", "--four"))
    assert payloads(command, stream) == ["one", "two ", "-3", "--four"]
    assert said == {
        "stream": stream,
        "messages": 4,
        "next_offset": "00000000000000000015",
        "closed": True,
    }


def test_a_flag_that_does_not_exist_is_no_message(command, new_stream):
    stream = new_stream()
    done = command.run("append", stream, "one", "--clsoe")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--close" in done.stderr
    assert payloads(command, stream) == []


def test_arguments_files_and_stdin_come_in_this_order(command, new_stream):
    stream = new_stream()
    (command.home / "a").write_text("in a\n1\n")
    (command.home / "b").write_text("in b")
    command("append", stream, "--file", "a", "--file", "-", "said", "--file", "b", stdin="in stdin")
    assert payloads(command, stream) == ["said", "in a\n1\n", "in stdin", "in b"]


@pytest.mark.parametrize(
    ("content_type", "flags", "sent", "stored"),
    [
        ("text/plain", (), "a\nb\n", ["a\nb\n"]),
        ("text/plain", ("--lines",), "a\nb", ["a\n", "b"]),
        ("text/plain", ("--lines",), "a\r\n\r\nb\rc\n", ["a\r\n", "\r\n", "b\rc\n"]),
        ("text/plain", ("--lines", *FRAMED), "a\r\n\nb", ["a", "", "b"]),
        ("text/plain", ("--lines",), "", []),
        (JSON, ("--lines",), '1\n\n  \r\n{"a":[2]}\r\n[3, 4]', [1, {"a": [2]}, [3, 4]]),
        (JSON, (), "\n[1,\n 2]\n", [[1, 2]]),
        (JSON, (), " \n", []),
    ],
    ids=["whole", "lines", "crlf", "framed", "empty", "json lines", "json", "json empty"],
)
def test_stdin(command, new_stream, content_type, flags, sent, stored):
    stream = new_stream(content_type)
    (said,) = command.json("append", stream, *flags, stdin=sent)
    assert said["messages"] == len(stored)
    assert payloads(command, stream, *(each for each in flags if each in FRAMED)) == stored


@pytest.mark.parametrize("line", ["1,2", '{"a":', "\x01", "nope"])
def test_a_line_that_is_not_json_is_named_and_those_before_it_are_stored(command, new_stream, line):
    stream = new_stream(JSON)
    done = command.run("append", stream, "--lines", stdin=f'{{"a":1}}\n\n{line}\n{{"b":2}}\n')
    assert done.returncode == 2
    assert done.stderr.startswith(
        "stopped after 1 message\nholdfast: line 3 of stdin is not JSON: "
    )
    assert payloads(command, stream) == [{"a": 1}]


def test_a_message_that_is_not_json_is_named(command, new_stream):
    done = command.run("append", new_stream(JSON), "1", "2 3")
    assert (done.returncode, "message 2 is not JSON" in done.stderr) == (2, True)


def test_a_file_that_is_missing_is_noticed_before_anything_is_sent(command, new_stream):
    stream = new_stream()
    done = command.run("append", stream, "one", "--file", "nowhere")
    assert done.returncode == 1
    assert done.stderr == "holdfast: nowhere cannot be read: No such file or directory.\n"
    assert payloads(command, stream) == []


def test_what_comes_through_a_pipe_is_stored_while_the_pipe_is_open(command, new_stream):
    stream = new_stream()
    with command.start("append", stream, "--lines") as writer:
        with command.start("tail", stream, "-f") as reader:
            for line in (b"one\n", b"two\n"):
                writer.stdin.write(line)
                writer.stdin.flush()
                # Read before the next one is sent: neither side waits for a buffer to fill.
                assert reader.stdout.readline() == line
            assert interrupt(reader) == (130, "")
        _, stderr = writer.communicate(timeout=DEADLINE_S)
    assert (writer.returncode, stderr.decode().count("appended 2 messages")) == (0, 1)


def test_ctrl_c_while_it_waits_for_stdin(command, new_stream):
    stream = new_stream()
    with command.start("append", stream, "--lines") as writer:
        with command.start("tail", stream, "-f") as reader:
            writer.stdin.write(b"one\n")
            writer.stdin.flush()
            assert reader.stdout.readline() == b"one\n"
            reader.kill()
        writer.send_signal(signal.SIGINT)
        assert writer.wait(DEADLINE_S) == 130
        assert b"Traceback" not in writer.stderr.read()


def test_a_producer_stores_the_same_input_once(command, new_stream):
    stream = new_stream()
    flags = ("--lines", "--producer", "importer")
    (first,) = command.json("append", stream, *flags, stdin="a\nb\n")
    (second,) = command.json("append", stream, *flags, stdin="a\nb\nc\n")
    assert (first["messages"], second["messages"]) == (2, 3)
    assert payloads(command, stream) == ["a\n", "b\n", "c\n"]


def test_a_producer_that_was_killed_goes_on_where_it_was(command, new_stream):
    stream = new_stream()
    lines = [f"{number}\n" for number in range(400)]
    (command.home / "input").write_text("".join(lines))
    flags = ("append", stream, "--lines", "--producer", "importer")
    with command.start("read", stream, "-f", "--quiet") as reader:
        with command.start(*flags) as writer:
            # The input goes on, so some are stored and most are not.
            writer.stdin.write("".join(lines[:50]).encode())
            writer.stdin.flush()
            seen = [reader.stdout.readline() for _ in range(10)]
            writer.kill()
        reader.kill()
    assert seen == [line.encode() for line in lines[:10]]
    assert writer.returncode == -signal.SIGKILL
    assert 10 <= len(payloads(command, stream)) <= 50
    command(*flags, "--file", "input")
    assert payloads(command, stream) == lines


def test_a_producer_with_an_old_epoch_is_fenced_unless_it_claims(command, new_stream):
    stream = new_stream()
    producer = ("--producer", "importer")
    command("append", stream, "new", *producer, "--epoch", "3")
    done = command.run("append", stream, "old", *producer)
    assert (done.returncode, "epoch 3" in done.stderr) == (4, True)
    command("append", stream, "claimed", *producer, "--claim")
    assert payloads(command, stream) == ["new", "claimed"]


def test_lines_of_a_byte_stream_share_requests_and_stay_messages(command, new_stream, server):
    stream = new_stream()
    lines = [f"line {number}\n" for number in range(900)]
    before = append_requests(server)
    command("append", stream, "--lines", stdin="".join(lines))
    assert payloads(command, stream) == lines
    assert append_requests(server) - before < 10


def test_a_batch_on_a_byte_stream_is_one_message(command, new_stream):
    stream = new_stream()
    command("append", stream, "--lines", "--batch", "2", stdin="a\nb\nc\n")
    assert payloads(command, stream) == ["a\nb\n", "c\n"]


def test_seq_and_if_match_guard_a_single_message(command, new_stream):
    stream = new_stream()
    (etag,) = {each["etag"] for each in command.json("info", stream)}
    command("append", stream, "one", "--seq", "b", "--if-match", etag)
    for guard in (("--seq", "a"), ("--if-match", etag)):
        done = command.run("append", stream, "no", *guard)
        assert done.returncode == 4, done.stderr
    for wrong in (("1", "2", "--seq", "c"), ("1", "--seq", "c", "--producer", "p")):
        assert command.run("append", stream, *wrong).returncode == 2
    assert payloads(command, stream) == ["one"]


def test_close_alone(command, new_stream):
    stream = new_stream()
    (said,) = command.json("append", stream, "--close")
    assert (said["messages"], said["closed"]) == (0, True)
    done = command.run("append", stream, "late", "--json")
    assert done.returncode == 4
    assert json.loads(done.stderr)["error"]["code"] == "stream_closed"


def test_nothing_at_all(command, new_stream):
    (document,) = command.json("append", new_stream(), "--lines")
    assert (document["messages"], document["next_offset"]) == (0, None)


def test_stdin_that_is_closed(command, new_stream):
    done = command.shell(f"holdfast append {new_stream()} <&-")
    assert (done.returncode, done.stderr) == (1, "holdfast: There is no stdin to read from.\n")


def test_stdin_without_end_does_not_block_the_producer(command, new_stream):
    """Far more than one pipe holds, in lines that are cut by the pieces it comes in."""
    stream = new_stream()
    lines = [f"{number:0>5000}\n" for number in range(200)]
    command("append", stream, "--lines", "--batch", "20", stdin="".join(lines))
    assert command("read", stream) == "".join(lines)


def test_an_argument_that_is_no_text(command, new_stream):
    done = subprocess.run(
        [b"holdfast", b"append", new_stream().encode(), b"\xff"],
        env=command.env,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"argument 3 is not UTF-8" in done.stderr) == (2, True)
