"""Error answers, turned back into the errors they were made from."""

import inspect

import msgspec
import pytest

from holdfast import errors
from holdfast.client.calls import Retry, may_repeat, was_refused
from holdfast.client.failures import error_of, error_of_frame, is_missing
from holdfast.errors import HoldfastError, error_classes
from holdfast.http.responses import error_body, error_headers
from holdfast.protocol.frames import ErrorInfo
from holdfast.testing import FakeClock
from tests.thorough import for_each

# What the constructors take; the defaults are another value than a lost one would be.
ARGUMENTS = {
    "message": 'It went wrong, in "quotes" and with an ä.',
    "name": "bucket/stream",
    "bucket": "bucket",
    "subscription": "mine",
    "method": "PATCH",
    "allowed": "GET, PUT",
    "holder": "worker-7",
    "advice": "",
    "epoch": 41,
    "seq": 7,
    "digest": "0123456789abcdef",
    "tail": 12_345,
    "earliest": 678,
    "generation": 3,
    "expected": 5,
    "received": 9,
    "retry_after_s": 17,
    "sent": True,
    "passing": True,
    "late": False,
    "stream_id": "0f6e7a52-6c3b-5d0e-8f1a-3f1f1d3c2b1a",
    "renewable": True,
    # One that did answer is not answered in this form.
    "upstream_status": None,
    "version": "2.0",
    "content_type": "",
    "body": b"",
}
CLASSES = sorted(error_classes().values(), key=lambda cls: cls.code)


def made(cls):
    parameters = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
    return cls(**{name: ARGUMENTS[name] for name in parameters})


def headers_of(error):
    lines = error_headers(error).decode().split("\r\n")
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def attributes(error):
    """What an instance has; the pause that a server asks for is zero where it asks for none."""
    asked_s = vars(error).get("retry_after_s", getattr(error, "retry_after_s", 0))
    return vars(error) | {"retry_after_s": asked_s}


class TestOurOwn:
    @for_each("cls", CLASSES)
    def test_comes_back_as_it_was(self, cls):
        error = made(cls)
        again = error_of(error.status, headers_of(error), error_body(error))
        assert type(again) is cls
        assert (again.code, again.status, again.message) == (cls.code, cls.status, error.message)
        assert again.args == error.args
        assert str(again) == error.message
        assert attributes(again) == attributes(error)

    @for_each("cls", CLASSES)
    def test_is_handled_like_any_other_without_its_headers(self, cls):
        # Something in between has dropped them: nothing that looks at the error may stumble.
        error = made(cls)
        again = error_of(error.status, {}, error_body(error))
        assert type(again) is cls
        assert vars(again).keys() >= vars(error).keys() - {"retry_after_s"}
        for repeatable in (True, False):
            may_repeat(again, repeatable=repeatable)
        Retry().delay_s(1, again, FakeClock())

    @for_each("cls", CLASSES)
    def test_has_the_status_that_was_answered(self, cls):
        again = error_of(418, {}, error_body(made(cls)))
        assert type(again) is cls
        assert again.status == 418
        assert cls.status != 418


class TestOtherServers:
    BY_STATUS = (
        (400, errors.InvalidRequestError),
        (401, errors.UnauthorizedError),
        (403, errors.ForbiddenError),
        (404, errors.StreamNotFoundError),
        (405, errors.MethodNotAllowedError),
        (408, errors.RequestTimeoutError),
        (409, errors.ConflictError),
        (410, errors.GoneError),
        (412, errors.PreconditionFailedError),
        (413, errors.PayloadTooLargeError),
        (418, errors.BadAnswerError),
        (425, errors.UnavailableError),
        (429, errors.RateLimitedError),
        (431, errors.HeadersTooLargeError),
        (302, errors.BadAnswerError),
        (499, errors.BadAnswerError),
        (500, errors.HoldfastError),
        (501, errors.HoldfastError),
        (502, errors.UnavailableError),
        (503, errors.UnavailableError),
        (504, errors.UnavailableError),
        (599, errors.HoldfastError),
    )
    BODIES = (
        (b"", ""),
        (b"<html><b>Oh\r\n no</b></html>", ": <html><b>Oh no</b></html>"),
        (b"Stream not found.", ": Stream not found"),
        (b"\xff\xfe", ": \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
        (b"[1, 2]", ": [1, 2]"),
        (b'"text"', ': "text"'),
        (b"null", ": null"),
        (b"{}", ": {}"),
        (b'{"error": null}', ': {"error": null}'),
        (b'{"error": [1]}', ': {"error": [1]}'),
        (b'{"code": "unheard_of"}', ': {"code": "unheard_of"}'),
        (
            b'{"error": {"code": ["x"], "message": ""}}',
            ': {"error": {"code": ["x"], "message": ""}}',
        ),
    )

    @for_each(("status", "cls"), BY_STATUS)
    @for_each(("body", "quoted"), BODIES)
    def test_status_decides(self, status, cls, body, quoted):
        error = error_of(status, {}, body)
        assert type(error) is cls
        assert error.status == status
        assert error.message == f"The server answered {status}{quoted}."
        assert str(error) == error.message
        may_repeat(error, repeatable=False)
        Retry().delay_s(1, error, FakeClock())

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"error": "No such thing"}, "No such thing"),
            ({"error": "E_GONE", "message": "It is gone"}, "It is gone"),
            ({"message": "Just a message"}, "Just a message"),
            ({"code": "their_own", "message": "Theirs"}, "Theirs"),
            ({"error": {"code": 5, "message": "A number"}}, "A number"),
            ({"error": {"message": {"deep": 1}}}, "{'deep': 1}"),
        ],
    )
    def test_message_is_taken_from_json(self, body, message):
        error = error_of(404, {}, msgspec.json.encode(body))
        assert type(error) is errors.StreamNotFoundError
        assert error.message == message

    def test_long_bodies_are_cut(self):
        error = error_of(500, {}, b"x" * 100_000)
        assert 400 < len(error.message) < 600

    @pytest.mark.parametrize(
        ("status", "headers", "cls", "attribute", "value"),
        [
            (409, {"stream-closed": "True"}, errors.StreamClosedError, "tail", -1),
            (
                409,
                {"stream-closed": "true", "stream-next-offset": "00000007"},
                errors.StreamClosedError,
                "tail",
                7,
            ),
            (
                409,
                {"producer-expected-seq": "3", "producer-received-seq": "9"},
                errors.ProducerGapError,
                "expected",
                3,
            ),
            (403, {"producer-epoch": "8"}, errors.ProducerFencedError, "epoch", 8),
            (403, {"producer-epoch": "what"}, errors.ProducerFencedError, "epoch", -1),
            (403, {"producer-epoch": "²"}, errors.ProducerFencedError, "epoch", -1),
            (403, {"producer-epoch": "9" * 5000}, errors.ProducerFencedError, "epoch", -1),
            (
                410,
                {"stream-earliest-offset": "abc_5"},
                errors.OffsetGoneError,
                "earliest_offset",
                "abc_5",
            ),
            (405, {"allow": "GET"}, errors.MethodNotAllowedError, "allowed", "GET"),
            (429, {"retry-after": "7"}, errors.RateLimitedError, "retry_after_s", 7),
            (503, {"retry-after": "9"}, errors.UnavailableError, "retry_after_s", 9),
            (500, {"retry-after": "2"}, errors.HoldfastError, "retry_after_s", 2),
        ],
    )
    def test_headers_of_the_protocol_tell_more(self, status, headers, cls, attribute, value):
        error = error_of(status, headers, b"")
        assert type(error) is cls
        assert getattr(error, attribute) == value

    def test_headers_mean_nothing_under_another_status(self):
        headers = {"stream-closed": "true", "producer-epoch": "5", "stream-earliest-offset": "1"}
        assert type(error_of(400, headers, b"")) is errors.InvalidRequestError
        assert type(error_of(409, {"stream-closed": "false"}, b"")) is errors.ConflictError

    def test_a_date_is_left_to_the_back_off(self):
        error = error_of(503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"")
        assert Retry(first_s=0.1).delay_s(1, error, FakeClock()) <= 0.1

    def test_pause_that_nobody_asked_for_is_none(self):
        assert errors.UnavailableError.retry_after_s == 1
        assert error_of(503, {}, b"").retry_after_s == 0
        assert error_of(429, {}, b"").retry_after_s == 0

    def test_status_of_one_answer_does_not_change_the_class(self):
        assert error_of(504, {}, b"").status == 504
        assert errors.UnavailableError.status == 503
        assert error_of(503, {}, b"").status == 503
        assert HoldfastError.status == 500


@pytest.mark.parametrize(
    ("status", "missing"), [(404, True), (405, True), (501, True), (500, False), (410, False)]
)
def test_whether_a_route_is_missing(status, missing):
    assert is_missing(error_of(status, {}, b"")) is missing


class TestUpstreams:
    """What an upstream said, passed on by the proxy."""

    @pytest.mark.spec("proxy 4.2-12", "proxy 12.4-1")
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b"", ""),
            (b"Slow down.", ": Slow down"),
            (b'{"error": {"message": "Wrong key.", "code": "not_found"}}', ": Wrong key"),
            (b'{"type": "error", "error": {"type": "x", "message": "Full"}}', ": Full"),
            (b'{"detail": 1}', ': {"detail": 1}'),
        ],
    )
    def test_that_refused(self, body, said):
        headers = {"upstream-status": "429", "content-type": "text/x", "retry-after": "3"}
        error = error_of(502, headers, body)
        assert type(error) is errors.UpstreamError
        assert error.message == f"The upstream answered 429{said}."
        assert (error.status, error.upstream_status) == (502, 429)
        assert (error.content_type, error.body) == ("text/x", body)
        assert error.retry_after_s == 3
        assert not was_refused(error)
        assert not may_repeat(error, repeatable=False)

    def test_status_of_one_means_nothing_elsewhere(self):
        error = error_of(400, {"upstream-status": "429"}, b"")
        assert type(error) is errors.InvalidRequestError

    @pytest.mark.parametrize(
        ("code", "cls"),
        [
            ("UPSTREAM_ERROR", errors.UpstreamError),
            ("UPSTREAM_TIMEOUT", errors.UpstreamTimeoutError),
            ("STORAGE_ERROR", errors.ProxyStorageError),
        ],
    )
    @pytest.mark.spec("proxy 5.2-10")
    def test_error_frame(self, code, cls):
        error = error_of_frame(ErrorInfo(code, "It broke off."))
        assert type(error) is cls
        assert (error.code, error.message, str(error)) == (code, *["It broke off."] * 2)
        assert vars(error).keys() >= vars(made(cls)).keys()

    def test_error_frame_of_another_make(self):
        error = error_of_frame(ErrorInfo("THEIRS", ""))
        assert type(error) is errors.UpstreamError
        assert error.message == "THEIRS: The response failed."
        assert (error.upstream_status, error.content_type, error.body) == (None, "", b"")

    @for_each("cls", CLASSES)
    def test_error_frame_with_any_code(self, cls):
        assert type(error_of_frame(ErrorInfo(cls.code, "x"))) is cls


class TestSecrets:
    SAID = "see http://h/v1/proxy/id?expires=5&signature=c2VjcmV0&x=1 or ?secret=c2VjcmV0"
    SHOWN = "see http://h/v1/proxy/id?expires=5&signature=…&x=1 or ?secret=…"

    @pytest.mark.parametrize("status", [400, 404, 500, 502])
    def test_in_urls_are_left_out_of_messages(self, status):
        for body in (msgspec.json.encode({"message": self.SAID}), self.SAID.encode()):
            error = error_of(status, {}, body)
            assert self.SHOWN in error.message
            assert "c2VjcmV0" not in str(error)

    def test_what_is_said_of_them_stays(self):
        said = "Give the secret as Authorization: Bearer, or as ?secret=."
        assert str(error_of(401, {}, said.encode())) == f"The server answered 401: {said}"

    def test_of_upstreams_as_well(self):
        assert self.SHOWN in str(error_of(502, {"upstream-status": "500"}, self.SAID.encode()))
        assert self.SHOWN in str(error_of_frame(ErrorInfo("UPSTREAM_ERROR", self.SAID)))
