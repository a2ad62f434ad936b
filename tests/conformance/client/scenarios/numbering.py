"""Appends that are stored exactly once, numbered by hand."""

from typing import Any

from tests.conformance.client.steps import (
    JSON,
    Scenario,
    Step,
    append,
    command,
    create,
    read,
)

STORED = {"status": 200, "duplicate": False}
DUPLICATE = {"status": 204, "duplicate": True}
LONG_ID = "producer-" + "x" * 150


def gap(expected: int, received: int) -> dict[str, Any]:
    details = {"producerExpectedSeq": expected, "producerReceivedSeq": received}
    return {"status": 409, "errorCode": "SEQUENCE_CONFLICT", "details": details}


def fenced(epoch: int) -> dict[str, Any]:
    return {"status": 403, "details": {"producerEpoch": epoch}}


def producer_headers(*values: str | None) -> dict[str, str]:
    names = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def numbered(
    *rows: tuple[int, int, dict[str, Any]], producer: str = "p", stream: str = "s"
) -> list[Step]:
    """Appends of one producer: epoch, sequence number, and what is answered."""
    return [
        append(f"{epoch}.{seq} ", stream, producer=(producer, epoch, seq), gives=gives)
        for epoch, seq, gives in rows
    ]


SCENARIOS = [
    Scenario(
        "Sequence numbers count up, and the answer echoes them",
        "first-append-accepted sequential-sequences ordering-preserved-in-stream",
        [
            create(),
            *numbered(*((0, seq, STORED | {"producerSeq": seq}) for seq in range(3))),
            read(gives={"data": "0.0 0.1 0.2 ", "upToDate": True}),
        ],
    ),
    Scenario(
        "A repeated number is a duplicate, whatever the data, however old, and changes nothing",
        "duplicate-returns-204 duplicate-seq-zero-preserves-state duplicate-ignores-different-data"
        " duplicate-old-sequence duplicate-different-payload",
        [
            create(),
            *numbered(*((0, seq, STORED) for seq in range(5))),
            *numbered((0, 1, DUPLICATE), (0, 0, DUPLICATE)),
            append("other", producer=("p", 0, 4), gives=DUPLICATE | {"producerSeq": 4}),
            *numbered((0, 5, STORED)),
            read(gives={"data": "0.0 0.1 0.2 0.3 0.4 0.5 "}),
        ],
    ),
    Scenario(
        "A repeated JSON batch is a duplicate as a whole",
        "batch-retry-deduplication duplicate-json-different-payload",
        [
            create(JSON),
            append('{"id":1}', producer=("p", 0, 0), gives=STORED),
            append('{"id":9,"x":true}', producer=("p", 0, 0), gives=DUPLICATE),
            append('{"id":2}', producer=("p", 0, 1), gives=STORED),
            read(gives={"data": '[{"id":1},{"id":2}]'}),
        ],
    ),
    Scenario(
        "A gap is refused with what is expected, and can be filled",
        "sequence-gap-rejected new-producer-seq-not-zero gap-fill-resume"
        " sequence-conflict-returns-expected-seq",
        [
            create(),
            *numbered(
                (0, 5, gap(0, 5)), (0, 0, STORED), (0, 2, gap(1, 2)), (0, 1, STORED), (0, 2, STORED)
            ),
            read(gives={"data": "0.0 0.1 0.2 ", "upToDate": True}),
        ],
    ),
    Scenario(
        "A newer epoch starts at 0, may skip some, and shuts every older one out",
        "epoch-upgrade-accepted stale-epoch-rejected epoch-rollback-rejected epoch-gap-allowed"
        " epoch-zero-after-higher-epoch split-brain-fencing large-epoch-numbers"
        " sequence-resets-on-epoch-upgrade stale-epoch-returns-current-epoch"
        " epoch-increase-requires-seq-zero sequence-continues-independently-per-epoch",
        [
            create(),
            *numbered(
                (0, 0, STORED),
                (0, 1, STORED),
                (1, 5, {"status": 400}),
                (1, 0, STORED),
                (0, 2, fenced(1)),
                (1, 1, STORED),
                (10, 0, STORED),
                (5, 0, fenced(10)),
                (2**31 - 8, 0, STORED),
                (100, 0, fenced(2**31 - 8)),
            ),
            read(gives={"data": f"0.0 0.1 1.0 1.1 10.0 {2**31 - 8}.0 "}),
        ],
    ),
    Scenario(
        "Producers do not touch each other, on one stream or on several",
        "multiple-producers-independent interleaved-producers-ordering producer-scope-per-stream"
        " producer-epoch-per-stream",
        [
            create(),
            create(stream="t"),
            *(
                append(f"{name}{seq} ", producer=(name, 0, seq), gives=STORED)
                for seq in range(3)
                for name in "AB"
            ),
            read(gives={"data": "A0 B0 A1 B1 A2 B2 "}),
            *numbered((5, 0, STORED)),
            *numbered((0, 0, STORED), stream="t"),
            *numbered((0, 1, fenced(5))),
            read(stream="t", gives={"data": "0.0 "}),
        ],
    ),
    Scenario(
        "A stream that was deleted and created anew knows no producers",
        "delete-recreate-resets-producer-state",
        [
            create(),
            *numbered((0, 0, STORED), (0, 1, STORED)),
            command("delete"),
            create(),
            *numbered((0, 0, STORED)),
            read(gives={"data": "0.0 "}),
        ],
    ),
    Scenario(
        "A producer's id may be long and hold punctuation",
        "producer-id-long producer-id-with-special-chars producer-id-with-special-characters",
        [
            create(),
            *(
                step
                for each in (
                    LONG_ID,
                    "a:b:1",
                    "region/zone/host",
                    "com.example_v2-x",
                    "550e8400-e29b",
                )
                for step in numbered((0, 0, STORED), (0, 0, DUPLICATE), producer=each)
            ),
        ],
    ),
    Scenario(
        "Malformed producer headers are refused",
        "partial-headers-rejected invalid-integer-formats-rejected empty-producer-id-rejected"
        " producer-id-empty-rejected",
        [
            create(),
            *(
                append("x", headers=producer_headers(*values), gives={"status": 400})
                for values in (
                    ("p", None, None),
                    ("p", "0", None),
                    ("p", "0", "1abc"),
                    ("p", "1e3", "0"),
                    ("p", "-1", "0"),
                    ("", "0", "0"),
                )
            ),
            read(gives={"chunkCount": 0}),
        ],
    ),
    Scenario(
        "An append that is refused uses up no number",
        "failed-append-does-not-advance-producer-state",
        [
            create(JSON),
            append("1", producer=("p", 0, 0), gives=STORED),
            append("no json", producer=("p", 0, 1), gives={"status": 400}),
            append("2", producer=("p", 0, 1), gives=STORED),
            append("3", producer=("p", 0, 2), gives=STORED),
            read(gives={"data": "[1,2,3]"}),
        ],
    ),
    Scenario(
        "Producer numbers and `Stream-Seq` go together",
        "producer-with-stream-seq",
        [
            create(),
            append("a", producer=("p", 0, 0), seq=7, gives=STORED),
            append("b", producer=("p", 0, 1), seq=7, gives={"errorCode": "SEQUENCE_CONFLICT"}),
            append("b", producer=("p", 0, 1), seq=8, gives=STORED),
            read(gives={"data": "ab"}),
        ],
    ),
]
