"""What SSE does to data, and what the client does with events.

A live read catches up with plain requests, so everything is appended once the connection stands.
"""

from tests.conformance.client.steps import (
    OCTETS,
    TEXT,
    Scenario,
    append,
    base64,
    close,
    create,
    fault,
    read,
    while_reading,
)

# Line ends for some parsers, but not for SSE.
SEPARATORS = "a\u0085b\u2028c\u2029d"
EVERY_BYTE = bytes(range(256)) * 20
PRINTABLE = bytes(range(32, 127))


def _arriving(
    what: str, data: str | bytes, text: str, content_type: str, covers: str = ""
) -> Scenario:
    """Something that an SSE connection brings."""
    binary = isinstance(data, bytes) and text == base64(data)
    gives = {"data": text, "binary": binary, "upToDate": True}
    steps = [create(content_type), while_reading("sse", append(data), gives=gives)]
    return Scenario(f"SSE brings {what}", covers, steps)


DATA = [
    _arriving(
        "separators that are no line ends",
        SEPARATORS,
        SEPARATORS,
        TEXT,
        "sse-preserves-nel-character sse-preserves-line-separator "
        "sse-preserves-paragraph-separator sse-preserves-all-unicode-separators",
    ),
    _arriving(
        "spaces at the start of a line",
        "  two\n one",
        "  two\n one",
        TEXT,
        "sse-strips-single-leading-space",
    ),
    _arriving("line ends", "one\n\ntwo\n", "one\n\ntwo\n", TEXT),
    _arriving("line ends that it cannot carry", "a\r\nb\rc", "a\r\nb\rc", TEXT),
    _arriving(
        "text of a binary stream",
        b"Hello World",
        "Hello World",
        OCTETS,
        "sse-base64-basic sse-base64-data-integrity-simple sse-base64-decodes-binary "
        "sse-base64-up-to-date sse-base64-preserves-control-events",
    ),
    _arriving(
        "lines of a binary stream",
        b"one\ntwo\r\nthree",
        "one\ntwo\r\nthree",
        OCTETS,
        "sse-base64-data-integrity-multiline",
    ),
    _arriving(
        "printable characters of a binary stream",
        PRINTABLE,
        PRINTABLE.decode(),
        OCTETS,
        "sse-base64-data-integrity-ascii sse-base64-data-integrity-json-like",
    ),
    _arriving(
        "every byte, many times over",
        EVERY_BYTE,
        base64(EVERY_BYTE),
        OCTETS,
        "sse-base64-all-byte-values sse-base64-large-payload sse-base64-large-payload-4kb "
        "sse-base64-special-bytes sse-binary-data sse-base64-decodes-full-byte-range "
        "sse-base64-multiline-handling",
    ),
    _arriving(
        "another binary type",
        b"\x08\xff",
        base64(b"\x08\xff"),
        "application/x-protobuf",
        "sse-base64-content-type-protobuf",
    ),
    _arriving(
        "an image",
        b"\x89PNG\r\n",
        base64(b"\x89PNG\r\n"),
        "image/png",
        "sse-base64-content-type-image",
    ),
    *(
        _arriving(f"{n} bytes", b"foobar"[:n], "foobar"[:n], OCTETS, f"sse-base64-rfc4648-{n}byte")
        for n in (1, 2, 3, 6)
    ),
    Scenario(
        "SSE from `now` brings what comes, and nothing else",
        "sse-base64-offset-now",
        [
            create(OCTETS),
            append(b"past"),
            while_reading("sse", append(b"new"), offset="now", gives={"data": "new"}),
        ],
    ),
    Scenario(
        "Many small binary appends arrive by SSE, each decoded on its own",
        "sse-base64-many-small-messages sse-base64-multiple-chunks sse-base64-multiple-appends "
        "sse-base64-padding-variations sse-base64-data-integrity-multiple-appends",
        [
            create(OCTETS),
            while_reading(
                "sse",
                *(append(str(n).encode() * (n % 4 + 1)) for n in range(10)),
                close(),
                maxChunks=99,
                gives={"data": "".join(str(n) * (n % 4 + 1) for n in range(10))},
            ),
        ],
    ),
    Scenario(
        "A new SSE connection decodes from where the last one got to",
        "sse-base64-resume-from-offset sse-base64-reconnect-decoding",
        [
            create(OCTETS),
            append(b"\xff\xfe", keep="first"),
            while_reading("sse", append(b"one"), at="first", gives={"data": "one"}),
            read(keep="end"),
            while_reading("sse", append(b"two"), at="end", gives={"data": "two"}),
        ],
    ),
    Scenario(
        "An append without data is refused, and SSE goes on",
        "append-empty sse-base64-empty-payload",
        [
            create(OCTETS),
            append(b"", gives={"status": 400}),
            while_reading("sse", append(b"data"), gives={"data": "data"}),
        ],
    ),
]

EVENTS = [
    Scenario(
        "Events of an unknown kind are passed over",
        "unknown-sse-event-type multiple-unknown-events",
        [
            create(),
            fault(live="sse", event=b"event: later\ndata: {}\n\nevent: newer\ndata: 2\n\n: no\n\n"),
            while_reading("sse", append("data"), gives={"data": "data"}),
        ],
    ),
    *(
        Scenario(
            f"{what} ends the read with an error",
            covers,
            [
                create(OCTETS),
                append(b"data", keep="end"),
                fault(live="sse", event=event + b"\n\n"),
                read("sse", at="end", gives={"errorCode": "PARSE_ERROR"}),
            ],
        )
        for what, event, covers in (
            (
                "A control event that is no JSON",
                b"event: control\ndata: {no json",
                "malformed-control-event-json",
            ),
            (
                "A control event that is empty",
                b"event: control\ndata: ",
                "empty-control-event-data",
            ),
            ("A control event without an offset", b'event: control\ndata: {"upToDate":true}', ""),
            ("Data that is no base64 where it should be", b"event: data\ndata: !", ""),
        )
    ),
]

SCENARIOS = [*DATA, *EVENTS]
