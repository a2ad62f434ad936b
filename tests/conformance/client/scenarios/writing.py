"""Streams from their creation to their end, and appends to them."""

from typing import Any

from tests.conformance.client.steps import (
    JSON,
    OCTETS,
    Scenario,
    Step,
    append,
    appends,
    close,
    command,
    create,
    each_of,
    fault,
    last_asked_for,
    last_had,
    read,
)

CLOSED = {"status": 409, "errorCode": "STREAM_CLOSED"}
SEQUENCE_CONFLICT = {"status": 409, "errorCode": "SEQUENCE_CONFLICT"}
PRECONDITION_FAILED = {"status": 412, "errorCode": "PRECONDITION_FAILED"}
END = {"upToDate": True, "streamClosed": True}


def head(**gives: Any) -> Step:
    return command("head", gives=gives)


CREATING = [
    Scenario(
        "A stream is created once; the same again finds it, another one is a conflict",
        "create-basic create-idempotent full-lifecycle recreate-after-delete",
        [
            create(gives={"status": 201, "hasOffset": True}),
            create(gives={"status": 200}),
            create(JSON, gives={"status": 409, "errorCode": "CONFLICT"}),
            append("data", gives={"status": 200}),
            read(gives={"data": "data", "upToDate": True}),
            command("delete", gives={"status": 200}),
            create(JSON, gives={"status": 201}),
            read(gives={"chunkCount": 0}),
        ],
    ),
    *(
        Scenario(
            f"The content type {content_type} is kept",
            covers,
            [create(content_type, gives={"status": 201}), head(contentType=content_type)],
        )
        for content_type, covers in (
            (JSON, "create-with-content-type cache-content-type-preserved"),
            (OCTETS, "create-binary-stream"),
            ("application/x-custom-type", "content-type-preserved"),
            ("text/plain; charset=utf-8", "content-type-with-charset"),
        )
    ),
    Scenario(
        "A lifetime is told by HEAD",
        "create-with-ttl",
        [
            create(ttlSeconds=3600, gives={"status": 201}),
            head(status=200, hasOffset=True, ttlSeconds=3600),
            create(stream="dated", expiresAt="2099-01-01T00:00:00Z", gives={"status": 201}),
            command("head", "dated", gives={"expiresAt": "2099-01-01T00:00:00Z"}),
        ],
    ),
    Scenario(
        "HEAD and connect tell of a stream without its data, empty or not",
        "head-metadata head-empty-stream connect-existing cache-head-returns-etag",
        [
            create(JSON),
            head(status=200, contentType=JSON, hasOffset=True, streamClosed=False),
            append('{"k": 1}'),
            head(status=200, hasOffset=True),
            command("connect", gives={"status": 200, "hasOffset": True}),
            read(gives={"data": '[{"k":1}]'}),
        ],
    ),
    Scenario(
        "Streams do not touch each other",
        "multiple-streams",
        [
            *(create(stream=each) for each in "ab"),
            *(append(each, each) for each in "ab"),
            *(read(stream=each, gives={"data": each}) for each in "ab"),
            command("delete", "a"),
            read(stream="b", gives={"data": "b"}),
        ],
    ),
]

HEADERS = [
    Scenario(
        "Headers of one's own go along with every kind of request",
        "custom-headers-create custom-headers-append custom-headers-read custom-headers-head"
        " custom-headers-delete create-with-custom-headers append-with-custom-headers",
        [
            create(headers={"X-Custom": "made"}, gives={"status": 201}),
            last_had("PUT", "X-Custom", "made"),
            append("a", headers={"X-Request-Id": "1", "Authorization": "Bearer a"}),
            last_had("POST", "Authorization", "Bearer a"),
            read(headers={"Authorization": "Bearer r"}, gives={"data": "a"}),
            last_had("GET", "Authorization", "Bearer r"),
            command("head", headers={"X-Trace-Id": "t"}),
            last_had("HEAD", "X-Trace-Id", "t"),
            command("delete", headers={"Authorization": "Bearer d"}),
            last_had("DELETE", "Authorization", "Bearer d"),
        ],
    ),
    Scenario(
        "A header that is a function is called for every request",
        "dynamic-header-per-request dynamic-header-on-read",
        [
            create(),
            command("set-dynamic-header", name="X-Count", valueType="counter"),
            *(append("a", gives={"headersSent": {"X-Count": str(n)}}) for n in (1, 2, 3)),
            last_had("POST", "X-Count", "3"),
            *(read(gives={"headersSent": {"X-Count": str(n)}}) for n in (4, 5)),
            # A repetition is a request of its own.
            fault(status=503),
            read(gives={"headersSent": {"X-Count": "7"}}),
            command("clear-dynamic"),
            read(gives={"headersSent": None}),
        ],
    ),
    Scenario(
        "A parameter that is a function is called for every request",
        "dynamic-param-per-request",
        [
            create(),
            command("set-dynamic-param", name="request_id", valueType="counter"),
            *(read(gives={"paramsSent": {"request_id": str(n)}}) for n in (1, 2)),
            last_asked_for("GET", "request_id=2"),
            command("set-dynamic-param", name="at", valueType="timestamp"),
            append("a"),
            last_asked_for("POST", "request_id=3"),
            command("clear-dynamic"),
        ],
    ),
    Scenario(
        "A token that has changed is the one that is sent",
        "token-refresh-simulation",
        [
            create(),
            *(
                each_of(
                    command(
                        "set-dynamic-header",
                        name="Authorization",
                        valueType="token",
                        initialValue=token,
                    ),
                    append("a", gives={"headersSent": {"Authorization": token}}),
                    last_had("POST", "Authorization", token),
                )
                for token in ("Bearer one", "Bearer two")
            ),
            command("clear-dynamic"),
        ],
    ),
]

SEQUENCES = [
    Scenario(
        "Sequence numbers may skip, but neither repeat nor go back",
        "seq-basic-ordering seq-conflict-detection seq-skip-numbers seq-same-number-conflict"
        " batch-with-sequences batch-partial-failure",
        [
            create(),
            append("a", seq=1, gives={"status": 200}),
            append("b", seq=2),
            append("x", seq=1, gives=SEQUENCE_CONFLICT),
            append("x", seq=2, gives=SEQUENCE_CONFLICT),
            append("c", seq=5),
            read(gives={"data": "abc", "upToDate": True}),
        ],
    ),
    Scenario(
        "Sequence numbers may be large, and may be left out",
        "seq-large-numbers seq-without-seq batch-concurrent-appends batch-preserves-order",
        [
            create(),
            append("a", seq=2**53 - 1),
            append("b"),
            appends(*"cdef"),
            read(gives={"data": "abcdef"}),
        ],
    ),
    Scenario(
        "`If-Match` lets an append through only while nobody else has written",
        "append-with-matching-if-match append-with-stale-if-match append-with-wildcard-if-match"
        " concurrent-writers-conflict retry-after-412 append-if-match-nonexistent"
        " append-if-match-closed-stream",
        [
            create(JSON),
            command("head", keep="empty"),
            append("1", unless_since="empty", keep="one", gives={"status": 200}),
            append("9", unless_since="empty", gives=PRECONDITION_FAILED),
            append("9", ifMatch='"0"', gives=PRECONDITION_FAILED),
            append("2", unless_since="one", gives={"status": 200}),
            append("3", ifMatch="*", gives={"status": 200}),
            read(gives={"data": "[1,2,3]"}),
            append("1", "lost", ifMatch='"0"', gives={"status": 404, "errorCode": "NOT_FOUND"}),
            close(),
            append("3", ifMatch='"0"', gives=CLOSED),
        ],
    ),
]

SCENARIOS = [*CREATING, *HEADERS, *SEQUENCES]
