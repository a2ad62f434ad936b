"""Following a stream: by long-polls, by SSE, and by what the client chooses itself."""

from tests.conformance.client.steps import (
    JSON,
    OCTETS,
    TEXT,
    Scenario,
    append,
    appends,
    close,
    create,
    last_asked_for,
    produce,
    read,
    while_reading,
)

SHORT_MS = 300
MODES = {"long-poll": "by long-polls", "sse": "by SSE", True: "by the client's choice"}

_CATCHING_UP = {
    "long-poll": (
        "ordering-longpoll-preserves-order equivalence-existing-data equivalence-from-offset "
        "equivalence-offset-semantics state-open-stream-partial-read offset-longpoll-resume "
        "longpoll-resume-from-offset"
    ),
    "sse": (
        "ordering-sse-preserves-order sse-receives-existing-data sse-resumes-from-offset "
        "sse-up-to-date-signal offset-sse-resume"
    ),
    True: (
        "auto-catches-up-with-existing-data auto-returns-immediately-on-existing-data "
        "auto-resumes-from-offset auto-multiple-chunks"
    ),
}
_FOLLOWING = {
    "long-poll": "longpoll-waits-for-data equivalence-live-new-data",
    "sse": "sse-receives-new-data equivalence-sse-live-new-data",
    True: "auto-waits-for-new-data",
}
_EPOCHS = {
    "sse": (
        "sse-receives-data-after-epoch-transition catchup-read-after-epoch-transition "
        "sse-receives-data-after-multiple-epoch-transitions"
    ),
    "long-poll": "longpoll-receives-data-after-epoch-transition",
}

SCENARIOS = [
    *(
        Scenario(
            f"What is there comes first, in order, {MODES[mode]}",
            covers,
            [
                create(),
                appends("a", "b", "c"),
                read(mode, waitForUpToDate=True, gives={"data": "abc", "upToDate": True}),
                read(mode, maxChunks=1, keep="part", gives={"data": "abc", "streamClosed": False}),
                read(at="part", gives={"chunkCount": 0, "upToDate": True, "streamClosed": False}),
                read(mode, at="after-1", waitForUpToDate=True, gives={"data": "bc"}),
                read(mode, at="after-2", waitForUpToDate=True, gives={"data": "c"}),
            ],
        )
        for mode, covers in _CATCHING_UP.items()
    ),
    *(
        Scenario(
            f"The tail of an empty stream is a place to go on from, {MODES[mode]}: {content_type}",
            covers,
            [
                create(content_type),
                *(
                    read(
                        mode,
                        waitForUpToDate=True,
                        keep="end",
                        gives={"chunkCount": 0, "upToDate": True},
                        **start,
                    )
                    for start in ({}, {"offset": "now"})
                ),
                append("1"),
                read(at="end", gives={"contains": ["1"]}),
            ],
        )
        for mode, content_type, covers in (
            ("long-poll", TEXT, "equivalence-empty-stream"),
            ("sse", TEXT, "sse-empty-stream offset-now-empty-stream-sse"),
            ("sse", JSON, "sse-json-empty-stream"),
            ("sse", OCTETS, "sse-base64-empty-stream"),
            (True, TEXT, "auto-empty-stream"),
        )
    ),
    Scenario(
        "A long-poll that is over in time gives what was there, and says that it is the tail",
        "longpoll-returns-immediately-with-data longpoll-multiple-chunks longpoll-timeout",
        [
            create(),
            appends("a", "b"),
            read("long-poll", timeoutMs=SHORT_MS, gives={"data": "ab", "upToDate": True}),
            read(
                "long-poll",
                at="after-2",
                timeoutMs=SHORT_MS,
                gives={"chunkCount": 0, "upToDate": True},
            ),
        ],
    ),
    Scenario(
        "A long-poll from `now` waits, and its 204 tells where to go on",
        "offset-now-longpoll-waits offset-now-empty-stream-longpoll offset-now-longpoll",
        [
            create(),
            append("past"),
            read(
                "long-poll",
                offset="now",
                timeoutMs=900,
                keep="end",
                gives={"status": 204, "chunkCount": 0, "upToDate": True},
            ),
            append("future"),
            read(at="end", gives={"data": "future"}),
        ],
    ),
    Scenario(
        "SSE from `now` skips what is there",
        "offset-now-sse",
        [
            create(),
            append("past"),
            read("sse", offset="now", waitForUpToDate=True, keep="end", gives={"chunkCount": 0}),
            append("future"),
            read(at="end", gives={"data": "future"}),
        ],
    ),
    *(
        Scenario(
            f"What is appended meanwhile arrives {MODES[mode]}",
            covers,
            [
                create(),
                append("past", keep="end"),
                while_reading(
                    mode, append("new"), at="end", gives={"data": "new", "upToDate": True}
                ),
            ],
        )
        for mode, covers in _FOLLOWING.items()
    ),
    *(
        Scenario(
            f"Several appends arrive in their order {MODES[mode]}",
            "ordering-live-new-data",
            [
                create(),
                # Appends may share a chunk, so the end of the stream ends the read.
                while_reading(
                    mode,
                    appends("A", "B", "C"),
                    close(),
                    maxChunks=9,
                    gives={"data": "ABC", "streamClosed": True},
                ),
            ],
        )
        for mode in MODES
    ),
    Scenario(
        "JSON arrives by SSE behind an empty catch-up",
        "sse-json-receives-new-data-after-empty-catchup",
        [
            create(JSON),
            append('{"id":0}', keep="end"),
            while_reading("sse", append('{"id": 1}'), at="end", gives={"data": '[{"id":1}]'}),
        ],
    ),
    Scenario(
        "A long-poll carries the cursor of the answer before",
        "",
        [
            create(),
            while_reading(
                "long-poll", append("a"), append("b"), close(), maxChunks=9, gives={"data": "ab"}
            ),
            last_asked_for("GET", "live=long-poll"),
            last_asked_for("GET", "cursor="),
        ],
    ),
    *(
        Scenario(
            f"A producer that claims a new epoch does not disturb a read {MODES[mode]}",
            covers,
            [
                create(),
                append("a", producer=("p", 5, 0), keep="end"),
                while_reading(
                    mode, produce("b", epoch=0, autoClaim=True), at="end", gives={"data": "b"}
                ),
                append("c", producer=("p", 10, 0)),
                read(gives={"data": "abc", "upToDate": True}),
            ],
        )
        for mode, covers in _EPOCHS.items()
    ),
]
