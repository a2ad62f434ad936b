"""Catching up: what is read, from where, and what a read that cannot be says."""

from tests.conformance.client.steps import (
    JSON,
    OCTETS,
    TEXT,
    Scenario,
    append,
    appends,
    base64,
    by_other,
    command,
    create,
    each_of,
    equal,
    last_asked_for,
    ordered,
    read,
)

NOT_FOUND = {"status": 404, "errorCode": "NOT_FOUND"}
ALL_BYTES = bytes(range(256))

CONTENT = [
    Scenario(
        "An empty stream has no chunks, and its reader is up to date",
        "read-empty-stream offset-empty-stream",
        [create(OCTETS), read(False, gives={"status": 200, "chunkCount": 0, "upToDate": True})],
    ),
    Scenario(
        "Appends are read in their order, from the start if nothing else is said",
        "append-string append-multiple read-single-chunk read-multiple-chunks read-from-beginning"
        " offset-minus-one-start ordering-sequential-appends ordering-many-messages",
        [
            create(),
            append("only", gives={"status": 200}),
            read(gives={"status": 200, "data": "only", "upToDate": True, "streamClosed": False}),
            appends(*(f" {n}" for n in range(10))),
            *(
                read(gives={"data": "only 0 1 2 3 4 5 6 7 8 9", "upToDate": True}, **start)
                for start in ({}, {"offset": "-1"}, {"live": False})
            ),
        ],
    ),
    Scenario(
        "Text of all scripts comes back as it was",
        "append-unicode read-unicode-data",
        [
            create("text/plain; charset=utf-8"),
            append("größer: 語 – мир 🪢"),
            read(gives={"data": "größer: 語 – мир 🪢"}),
        ],
    ),
    *(
        Scenario(f"Bytes come back as they were: {what}", covers, steps)
        for what, covers, steps in (
            (
                "as text where they are text",
                "append-binary",
                [create(OCTETS), append(b"plain"), read(gives={"data": "plain", "binary": False})],
            ),
            *(
                (
                    f"{name} of {content_type}",
                    covers,
                    [
                        create(content_type),
                        append(data),
                        read(gives={"data": base64(data), "binary": True, "upToDate": True}),
                    ],
                )
                for name, data, content_type, covers in (
                    ("every value", ALL_BYTES, OCTETS, "append-all-byte-values"),
                    ("a single one", b"\x9b", OCTETS, "append-replacement-char-should-not-appear"),
                    (
                        "high ones",
                        b"\x90\xa0\xf0\xff",
                        OCTETS,
                        "append-high-bytes-single append-non-utf8-bytes-single read-binary-data",
                    ),
                    (
                        "a record",
                        b"\x0a\x02ok\x10\x9b\x01\x1a\x02\xbe\xef",
                        "application/x-binary",
                        "append-protobuf-like-data append-binary-x-binary-content-type",
                    ),
                )
            ),
            (
                "from a producer",
                "append-non-utf8-bytes-batched",
                [
                    create(OCTETS),
                    command(
                        "idempotent-append", producerId="p", data=base64(b"\xf5\x8b"), binary=True
                    ),
                    read(gives={"data": base64(b"\xf5\x8b"), "binary": True}),
                ],
            ),
        )
    ),
    Scenario(
        "A large append comes back whole",
        "append-large-data",
        [create(), append("x" * 300_000), read(gives={"data": "x" * 300_000, "upToDate": True})],
    ),
    *(
        Scenario(
            f"A JSON stream takes {what} and gives an array",
            covers,
            [create(JSON), append(data), read(gives={"data": f"[{data}]", "upToDate": True})],
        )
        for what, data, covers in (
            ("a number", "42", "json-primitive-number"),
            ("a string", '"words"', "json-primitive-string"),
            ("an object", '{"a":[1,{"b":null}]}', ""),
            ("an array as one message", "[1,2]", "json-batch-nested-arrays"),
        )
    ),
    *(
        Scenario(
            f"{content_type} is {'JSON' if is_json else 'not JSON'}",
            covers,
            [
                create(content_type),
                append('{"n": 1}'),
                read(gives={"data": '[{"n":1}]' if is_json else '{"n": 1}'}),
            ],
        )
        for content_type, is_json, covers in (
            ("application/json; charset=utf-8", True, "json-charset-parameter"),
            ("Application/JSON", True, "plus-json-case-insensitive"),
            ("text/json", False, "text-json-not-json-mode"),
            ("application/atom+xml", False, "plus-xml-not-json-mode"),
        )
    ),
]

OFFSETS = [
    Scenario(
        "A read from behind an append holds exactly what came later, as often as it is asked for",
        "read-from-offset offset-resume-partial offset-exact-resumption offset-byte-exactness"
        " offset-monotonic ordering-offset-monotonic offset-multiple-reads-same-offset"
        " offset-at-end cache-offset-deterministic",
        [
            create(),
            appends("AAAA", "BB", "CCC"),
            ordered("after-1", "after-2", "after-3"),
            *(
                read(at=at, gives={"data": data, "upToDate": True})
                for at, data in (("after-1", "BBCCC"), ("after-2", "CCC"), ("after-3", ""))
                for _ in range(3)
            ),
            read(at="after-3", gives={"chunkCount": 0, "upToDate": True}),
        ],
    ),
    Scenario(
        "The offset of a read is where the next one goes on, also in another session",
        "offset-stored-correctly read-preserves-offset offset-persists-across-sessions"
        " cache-immutable-historical-data cache-read-idempotent cache-uptodate-stable",
        [
            create(),
            appends("one", "two"),
            read(maxChunks=1, keep="end", gives={"data": "onetwo"}),
            append("three"),
            each_of(
                read(at="end", gives={"data": "three"}),
                by_other(read(at="end", gives={"data": "three"})),
            ),
            *(read(gives={"data": "onetwothree", "upToDate": True}) for _ in range(2)),
        ],
    ),
    Scenario(
        "`now` is the tail: what is there is skipped, what comes is not",
        "offset-now-skips-historical offset-now-empty-stream offset-now-matches-tail",
        [
            create(),
            read(offset="now", keep="empty", gives={"chunkCount": 0, "upToDate": True}),
            append("past"),
            read(keep="tail"),
            read(offset="now", keep="now", gives={"chunkCount": 0, "upToDate": True}),
            equal("now", "tail"),
            append("future"),
            read(at="empty", gives={"data": "pastfuture"}),
            read(at="now", gives={"data": "future"}),
        ],
    ),
    Scenario(
        "The offset of a HEAD is the tail",
        "offset-from-head",
        [
            create(),
            append("before"),
            command("head", keep="head"),
            append("after"),
            read(at="head", gives={"data": "after"}),
        ],
    ),
    Scenario(
        "An offset is sent as it was given: what it means is the server's to say",
        "offset-zero-start",
        [
            create(keep="start"),
            append("whole"),
            read(at="start", gives={"data": "whole"}),
            read(offset="0", gives={"data": "whole"}),
            last_asked_for("GET", "offset=0"),
            read(offset="0_0", gives={"status": 400, "errorCode": "INVALID_OFFSET"}),
        ],
    ),
]

ERRORS = [
    Scenario(
        "A stream that is not there is an error that names it",
        "read-nonexistent-stream not-found-includes-path not-found-on-append-includes-path"
        " head-not-found-includes-path append-to-nonexistent connect-nonexistent head-nonexistent"
        " delete-nonexistent no-retry-on-404 close-nonexistent-stream",
        [
            command("read", "lost", gives=NOT_FOUND | {"says": ["-lost"]}),
            append("data", "lost", gives=NOT_FOUND | {"says": ["-lost"]}),
            command("head", "lost", gives=NOT_FOUND | {"says": ["-lost"]}),
            *(command(kind, "lost", gives=NOT_FOUND) for kind in ("connect", "delete", "close")),
        ],
    ),
    Scenario(
        "No way of reading hides that a stream is not there",
        "longpoll-nonexistent sse-nonexistent read-offset-now-nonexistent"
        " read-offset-now-nonexistent-longpoll read-offset-now-nonexistent-sse",
        [
            read(live, "lost", gives=NOT_FOUND, **offset)
            for live in (False, "long-poll", "sse", True)
            for offset in ({}, {"offset": "now"})
        ],
    ),
    Scenario(
        "A stream that was deleted is not there",
        "read-deleted-stream create-then-delete-then-append delete-idempotent",
        [
            create(),
            append("gone"),
            command("delete", gives={"status": 200}),
            read(gives=NOT_FOUND),
            append("late", gives=NOT_FOUND),
            command("delete", gives=NOT_FOUND),
        ],
    ),
    Scenario(
        "A malformed offset is refused as such",
        "read-invalid-offset invalid-offset-includes-context",
        [
            create(),
            append("data"),
            read(
                offset="no such offset",
                gives={"status": 400, "errorCode": "INVALID_OFFSET", "says": ["offset"]},
            ),
        ],
    ),
    Scenario(
        "An offset past the tail is refused",
        "read-future-offset",
        [
            create(),
            append("data"),
            read(offset="9" * 20, gives={"status": 400, "errorCode": "INVALID_OFFSET"}),
        ],
    ),
    Scenario(
        "A live mode that nobody has is not supported",
        "",
        [create(TEXT), read("telepathy", gives={"errorCode": "NOT_SUPPORTED"})],
    ),
]

SCENARIOS = [*CONTENT, *OFFSETS, *ERRORS]
