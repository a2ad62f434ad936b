"""`holdfast proxy`: a real server, a real upstream behind it, and what people see of them."""

import json
import os
import re
import shlex

import pytest

from tests.cli.holdfast_command import DEADLINE_S, Command, interrupt
from tests.server_process import ServerProcess
from tests.upstreams import Upstream, pattern

SECRET = "the-secret-of-the-proxy-in-these-tests"
SIGNED = re.compile(r"http://127\.0\.0\.1:\d+/v1/proxy/[0-9a-f-]{36}\?expires=\d+&signature=[\w-]+")


@pytest.fixture(scope="module")
def upstream():
    with Upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = {"proxy_secret": SECRET, "proxy_allowlist": "http://127.0.0.1:*"}
    with ServerProcess(tmp_path_factory.mktemp("server") / "data", **settings) as process:
        yield process


@pytest.fixture
def command(server, tmp_path):
    return Command(tmp_path / "home", server.url, HOLDFAST_TOKEN=SECRET)


def requested(command, upstream, path="/fixed", *flags, **query):
    """Make a request, and return its signed URL."""
    return command("proxy", "request", upstream.url(path, **query), "--no-follow", *flags).strip()


class TestRequest:
    def test_prints_the_response(self, command, upstream):
        done = command.run("proxy", "request", upstream.url("/fixed", body="a\nb"))
        assert (done.returncode, done.stdout) == (0, "a\nb")
        assert re.fullmatch(r"response 1 complete, next offset \d{20}\n", done.stderr)

    def test_without_following_prints_the_signed_url(self, command, upstream):
        url = requested(command, upstream, body="x")
        assert SIGNED.fullmatch(url)
        assert command("proxy", "follow", url) == "x"

    def test_sends_what_it_is_told_to(self, command, upstream):
        (command.home / "key").write_text("Bearer from-file\n")
        (command.home / "body").write_bytes(b"\0\xff")
        given = command.with_env(HOLDFAST_UPSTREAM_AUTHORIZATION="Bearer from-env")
        url = upstream.url("/echo")

        def sent(*flags, stdin=b"", by=given):
            by("proxy", "request", url, *flags, stdin=stdin)
            request = upstream.requests[-1]
            return request, request.header("authorization"), request.header("content-type")

        request, key, media = sent()
        assert (request.method, request.body, key, media) == ("GET", b"", "Bearer from-env", None)
        flags = ("-H", "X-One: 1", "--header", "X-Two:2", "-d", '{"a": 1}')
        request, key, media = sent(*flags, "--upstream-authorization", "Basic given")
        assert (request.method, request.json, key) == ("POST", {"a": 1}, "Basic given")
        assert media == "application/json"
        assert (request.header("x-one"), request.header("x-two")) == ("1", "2")
        flags = ("-X", "put", "--data", "@body", "--upstream-authorization", "@key")
        request, key, media = sent(*flags)
        assert (request.method, request.body, key) == ("PUT", b"\0\xff", "Bearer from-file")
        assert media is None
        request, key, media = sent("--data", "-", "-H", "content-type: x/y", stdin="in", by=command)
        assert (request.method, request.body, key, media) == ("POST", b"in", None, "x/y")

    def test_data_of_events(self, command, upstream):
        url = upstream.url("/v1/messages", text="one two")
        lines = command("proxy", "request", url, "--sse").splitlines()
        kinds = [json.loads(line)["type"] for line in lines]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
        (asked, *events) = command.json("proxy", "request", url, "--sse")
        assert asked["response_id"] == 1
        assert [event["event"] for event in events] == kinds
        assert all(json.loads(event["data"])["type"] == event["event"] for event in events)

    def test_json_is_the_request_and_then_a_document_for_each_frame(self, command, upstream):
        url = upstream.url("/fixed", body="hello", header="X-Id: 7")
        asked, begin, piece, end = command.json("proxy", "request", url)
        assert SIGNED.fullmatch(asked["url"])
        assert asked["url"].find(asked["stream_id"]) > 0
        assert (asked["response_id"], asked["content_type"]) == (1, "text/plain")
        assert (begin["frame"], begin["status"], begin["headers"]["x-id"]) == ("start", 200, "7")
        assert (piece["frame"], piece["text"]) == ("data", "hello")
        assert (end["frame"], end["response_id"]) == ("complete", 1)
        assert end["next_offset"] > piece["next_offset"] > begin["next_offset"]
        alone = command.json("proxy", "request", url, "--no-follow")
        assert [set(each) for each in alone] == [
            {"url", "stream_id", "response_id", "content_type", "offset"}
        ]

    def test_bytes_come_as_they_are(self, command, upstream):
        url = upstream.url("/bytes", count=100_000)
        printed = command("proxy", "request", url)
        assert printed.encode(errors="surrogateescape") == pattern(100_000)

    def test_sessions_gather_responses(self, command, upstream):
        for number in (1, 2):
            flags = ("--session", "gathering", "-d", f"turn {number}")
            asked, *_ = command.json("proxy", "request", upstream.url("/echo"), *flags)
            assert asked["response_id"] == number
        (third,) = command.json(
            "proxy", "request", upstream.url("/fixed", body="third"), "--append-to", asked["url"],
            "--no-follow",
        )  # fmt: skip
        assert (third["response_id"], third["stream_id"]) == (3, asked["stream_id"])
        assert command("proxy", "follow", "--session", "gathering", "--response", "3") == "third"


class TestFailures:
    @pytest.mark.parametrize(
        ("path", "query", "words"),
        [
            ("/error", {"status": 401, "count": 3}, "The upstream answered 401: xxx."),
            ("/redirect", {}, "redirect"),
        ],
    )
    def test_of_upstreams(self, command, upstream, path, query, words):
        done = command.run("proxy", "request", upstream.url(path, **query))
        assert done.returncode == (2 if path == "/redirect" else 1)
        assert done.stdout == ""
        assert words in done.stderr

    def test_in_the_middle_come_behind_what_had_arrived(self, command, upstream):
        url = upstream.url("/fixed", body="abc", piece=1, framing="chunked", after=2, end="cut")
        done = command.run("proxy", "request", url, "--json")
        assert done.returncode == 1
        frames = [json.loads(line) for line in done.stdout.splitlines()]
        assert "".join(each.get("text", "") for each in frames) == "ab"
        assert frames[-1]["frame"] == "error"
        assert json.loads(done.stderr)["error"]["code"] == frames[-1]["code"] == "UPSTREAM_ERROR"

    @pytest.mark.parametrize(
        ("variables", "code"),
        [
            ({"HOLDFAST_TOKEN": ""}, "MISSING_SECRET"),
            ({"HOLDFAST_TOKEN": "other"}, "INVALID_SECRET"),
        ],
    )
    def test_of_credentials(self, command, upstream, variables, code):
        done = command.with_env(**variables).run(
            "proxy", "request", upstream.url("/fixed"), "--json"
        )
        assert done.returncode == 5
        assert json.loads(done.stderr)["error"]["code"] == code

    def test_of_what_is_not_allowed_or_not_there(self, command):
        done = command.run("proxy", "request", "https://elsewhere.example.com/")
        assert done.returncode == 5
        url = command("proxy", "connect", "forged").strip()
        done = command.with_env(HOLDFAST_TOKEN="").run("proxy", "follow", url[:-4] + "AAAA")
        assert done.returncode == 5
        assert url[-20:-4] not in done.stderr
        nowhere = ("abort", "http://127.0.0.1:1/v1/proxy/x", "--retries", "0")
        assert command.run("proxy", *nowhere).returncode == 6
        gone = url.replace("/v1/proxy/", "/v1/proxy/0")
        assert command.run("proxy", "follow", gone).returncode == 3

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("request",), "requires an argument"),
            (("request", "api.example.com"), "is not a URL"),
            (("request", "http://h/", "-X", "HEAD"), "must be one of GET, POST"),
            (("request", "http://h/", "-H", "nonsense"), "must be 'Name: value'"),
            (("request", "http://h/", "-H", "a: 1", "-H", "A: 2"), "is given twice"),
            (("request", "http://h/", "-H", "Authorization: x"), "--upstream-authorization"),
            (("request", "http://h/", "-H", "Session-Id: x"), "Session-Id is set"),
            (("request", "http://h/", "-d", "@"), "names no file"),
            (("request", "http://h/", "--upstream-authorization", "@nothing"), "cannot be read"),
            (("request", "http://h/", "--upstream-authorization", "ü"), "printable ASCII"),
            (("request", "http://h/", "--ttl=-1"), "at least 0"),
            (("request", "http://h/", "--session", " "), "printable ASCII"),
            (
                ("request", "http://h/", "--session", "a", "--append-to", "http://h/?"),
                "cannot be combined",
            ),
            (("request", "http://h/", "--append-to", "chat"), "is not a signed URL"),
            (("follow",), "by its signed URL, or by its --session"),
            (("follow", "demo1/hello"), "is not a signed URL"),
            (("follow", "http://h/v1/proxy/id?expires=5"), "put it in quotes"),
            (("follow", "http://h/?", "--response", "0"), "count from 1"),
            (("follow", "http://h/?", "--frames", "--sse"), "leave out --response and --sse"),
            (("abort",), "by its signed URL, or by its --session"),
            (("connect",), "requires an argument"),
            (("connect", "für"), "printable ASCII"),
        ],
    )
    def test_wrong_usage_says_what_to_do(self, command, arguments, words):
        done = command.run("proxy", *arguments)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_file_that_is_not_there(self, command):
        done = command.run("proxy", "request", "http://h/", "-d", "@nothing")
        assert done.returncode == 1
        assert "nothing cannot be read" in done.stderr


class TestFollow:
    def test_ctrl_c_leaves_it_running_and_says_how_to_go_on(self, command, upstream):
        url = upstream.url("/fixed", body="abcd", piece=1, framing="chunked", gate=1, id="ctrl-c")
        process = command.start("proxy", "request", url)
        asked = upstream.wait_for(lambda each: "ctrl-c" in each.target)
        asked.release(2)
        assert os.read(process.stdout.fileno(), 1) == b"a"
        assert os.read(process.stdout.fileno(), 1) == b"b"
        status, stderr = interrupt(process)
        assert status == 130
        assert not asked.disconnected
        follow, abort = [line.partition(": ")[2] for line in stderr.splitlines()]
        assert SIGNED.search(follow)
        assert " --from 0" in follow
        following = command.start(*shlex.split(follow)[1:])
        asked.release()
        assert os.read(following.stdout.fileno(), 1) == b"c"
        assert command.run(*shlex.split(abort)[1:]).returncode == 0
        stdout, stderr = following.communicate(timeout=DEADLINE_S)
        assert (following.returncode, stdout) == (1, b"")
        assert b"response 1 aborted" in stderr
        asked.wait_for_disconnect()

    def test_ctrl_c_of_a_session_names_that(self, command, upstream):
        url = upstream.url("/fixed", body="ab", piece=1, framing="chunked", gate=1, id="in-session")
        process = command.start("proxy", "request", url, "--session", "my chat")
        asked = upstream.wait_for(lambda each: "in-session" in each.target)
        asked.release()
        assert os.read(process.stdout.fileno(), 1) == b"a"
        status, stderr = interrupt(process)
        assert status == 130
        assert "signature=" not in stderr
        follow = stderr.splitlines()[0].partition(": ")[2]
        assert "holdfast proxy follow --session 'my chat' --response 1 --from" in follow
        asked.release_all()
        assert command(*shlex.split(follow)[1:]) == "b"

    def test_ctrl_c_between_events(self, command, upstream):
        url = upstream.url("/v1/chat/completions", gate=1, id="events")
        process = command.start("proxy", "request", url, "--sse", "--session", "events")
        asked = upstream.wait_for(lambda each: "id=events" in each.target)
        asked.release()
        assert process.stdout.readline()
        _, stderr = interrupt(process)
        follow = stderr.splitlines()[0].partition(": ")[2]
        assert follow == "holdfast proxy follow --session events --response 1 --sse"
        asked.release_all()
        assert command(*shlex.split(follow)[1:]).splitlines()[-1] == "[DONE]"

    def test_ctrl_c_before_the_upstream_answers(self, command, upstream):
        process = command.start("proxy", "request", upstream.url("/never", id="early"))
        asked = upstream.wait_for(lambda each: "early" in each.target)
        status, stderr = interrupt(process)
        assert status == 130
        assert "it may have been called" in stderr
        asked.release_all()

    def test_frames_of_all_responses(self, command, upstream):
        for body in ("one", "two"):
            url = upstream.url("/fixed", body=body, type="x/y" if body == "two" else "text/plain")
            command("proxy", "request", url, "--session", "framed")
        frames = command.json("proxy", "follow", "--session", "framed", "--frames", "--exit")
        kinds = [(frame["response_id"], frame["frame"]) for frame in frames]
        assert kinds == [
            (number, kind) for number in (1, 2) for kind in ("start", "data", "complete")
        ]
        assert (frames[1]["text"], frames[4]["base64"]) == ("one", "dHdv")
        rest = command.json(
            "proxy", "follow", "--session", "framed", "--frames", "-e", "--from",
            frames[3]["next_offset"],
        )  # fmt: skip
        assert rest == frames[4:]

    def test_what_there_is_so_far(self, command, upstream):
        url = upstream.url("/fixed", body="ab", piece=1, framing="chunked", gate=1, id="so-far")
        signed = command("proxy", "request", url, "--no-follow").strip()
        asked = upstream.wait_for(lambda each: "so-far" in each.target)
        done = command.run("proxy", "follow", signed, "-e")
        assert (done.returncode, done.stdout) == (0, "")
        assert "response 1 open" in done.stderr
        asked.release_all()
        assert command("proxy", "follow", signed, "--quiet") == "ab"

    def test_needs_no_secret(self, command, upstream):
        url = requested(command, upstream, body="x")
        assert command.with_env(HOLDFAST_TOKEN="")("proxy", "follow", url) == "x"

    def test_url_of_another_stream_than_the_session(self, command, upstream):
        url = requested(command, upstream, body="x")
        done = command.run("proxy", "follow", url, "--session", "another")
        assert done.returncode == 2
        assert "name different streams" in done.stderr


class TestSessions:
    def test_connect_prints_the_url(self, command, upstream):
        url = command("proxy", "connect", "one", "--ttl", "60").strip()
        assert SIGNED.fullmatch(url)
        (document,) = command.json("proxy", "connect", "one")
        assert document["url"].partition("?")[0] == url.partition("?")[0]
        assert document["stream_id"] in url
        assert (document["session"], document["created"]) == ("one", False)
        (new,) = command.json("proxy", "connect", "new")
        assert new["created"]

    def test_connect_asks_who_decides(self, command, upstream):
        flags = ("--auth-url", upstream.url("/auth", id="may"), "-d", '{"room": 5}', "-H", "X-A: 1")
        key = ("--upstream-authorization", "Bearer me")
        command("proxy", "connect", "two", *flags, *key)
        asked = upstream.wait_for(lambda each: "id=may" in each.target)
        assert (asked.json, asked.header("authorization")) == ({"room": 5}, "Bearer me")
        assert asked.header("x-a") == "1"
        refused = upstream.url("/auth", status=403)
        done = command.run("proxy", "connect", "two", "--auth-url", refused, "--json")
        assert done.returncode == 5
        assert json.loads(done.stderr)["error"]["code"] == "CONNECT_REJECTED"

    def test_abort_says_what_it_has_stopped(self, command):
        url = command("proxy", "connect", "abort").strip()
        done = command.run("proxy", "abort", url)
        assert done.returncode == 0
        assert "stopped all responses in" in done.stderr
        (document,) = command.json("proxy", "abort", "--session", "abort", "--response", "2")
        assert document["aborted"]
        assert (document["response_id"], document["stream_id"] in url) == (2, True)
