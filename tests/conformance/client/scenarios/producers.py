"""Appends that are stored exactly once, numbered by the client's producer; and its options."""

from typing import Any

from tests.conformance.client.scenarios.numbering import STORED, fenced, numbered
from tests.conformance.client.steps import (
    JSON,
    TEXT,
    Scenario,
    Step,
    by_other,
    command,
    create,
    fault,
    last_had,
    produce,
    produce_all,
    read,
    sent_in_all,
)

BY_CLIENT = [
    Scenario(
        "A producer lives on between appends and numbers them",
        "",
        [
            create(),
            *(produce(f"{n} ", gives={"status": 200, "producerSeq": n}) for n in range(4)),
            last_had("POST", "Producer-Seq", "3"),
            read(gives={"data": "0 1 2 3 "}),
        ],
    ),
    Scenario(
        "A single JSON value is one message",
        "json-batch-single-item",
        [create(JSON), produce('{"a": 1}'), read(gives={"data": '[{"a":1}]', "upToDate": True})],
    ),
    Scenario(
        "JSON values go out in one request and stay messages of their own",
        "json-batch-multiple-items json-batch-nested-arrays json-batch-mixed-types"
        " json-primitive-boolean-null",
        [
            create(JSON),
            produce_all(["[1, 2]", '{"a": 1}', "42", '"text"', "null", "true", "false"]),
            sent_in_all("POST", 1),
            read(gives={"data": '[[1,2],{"a":1},42,"text",null,true,false]', "upToDate": True}),
        ],
    ),
    Scenario(
        "Messages of a byte stream that may be joined are one request",
        "bytes-batch-concatenates",
        [
            create(),
            produce_all(["Hello", " ", "World"]),
            sent_in_all("POST", 1),
            read(gives={"data": "Hello World"}),
        ],
    ),
    *(
        Scenario(
            f"Many requests at once leave everything in order: {content_type}{claims}",
            covers,
            [
                create(content_type),
                produce_all(
                    [str(n) for n in range(100, 120)], maxInFlight=5, autoClaim=bool(claims)
                ),
                sent_in_all("POST", 20),
                read(
                    gives={
                        "data": separator.join(map(str, range(100, 120))).join(ends),
                        "upToDate": True,
                    }
                ),
            ],
        )
        for content_type, separator, ends, claims, covers in (
            (TEXT, "", ("", ""), "", "concurrent-batches-all-delivered"),
            (JSON, ",", ("[", "]"), "", "concurrent-json-batches-all-delivered"),
            (TEXT, "", ("", ""), ", claiming", "autoclaim-with-pipelining"),
            (JSON, ",", ("[", "]"), ", claiming", "autoclaim-with-pipelining-json"),
        )
    ),
    Scenario(
        "A producer that is shut out claims the next epoch if it may",
        "autoclaim-recovers-from-stale-epoch autoclaim-recovers-from-403"
        " autoclaim-batch-recovers-from-403",
        [
            create(),
            *numbered((5, 0, STORED)),
            produce("no", gives=fenced(5)),
            produce("one ", autoClaim=True, gives={"status": 200}),
            last_had("POST", "Producer-Epoch", "6"),
            by_other(produce_all(["two ", "three "], autoClaim=True)),
            last_had("POST", "Producer-Epoch", "7"),
            read(gives={"data": "5.0 one two three "}),
        ],
    ),
    Scenario(
        "The same batches from a producer that starts anew are recognised",
        "client-deduplication-works",
        [
            create(JSON),
            produce_all(["1", "2"]),
            by_other(produce_all(["1", "2"], gives={"duplicate": True})),
            read(gives={"data": "[1,2]"}),
        ],
    ),
    Scenario(
        "A producer whose answer was lost sends again, and nothing is stored twice",
        "",
        [
            create(),
            fault(method="POST", loses_answer=True),
            produce("once", gives={"status": 200, "duplicate": True}),
            fault(method="POST", drops=True),
            fault(method="POST", status=503),
            produce(" more", gives={"status": 200, "duplicate": False}),
            sent_in_all("POST", 5),
            read(gives={"data": "once more"}),
        ],
    ),
    Scenario(
        "A producer that has failed makes room for a new one",
        "",
        [
            create(JSON),
            produce("no json", gives={"status": 400}),
            produce("1", gives={"status": 200}),
            read(gives={"data": "[1]"}),
        ],
    ),
]


def validated(target: str, says: str, **options: Any) -> Step:
    gives = {"errorCode": "INVALID_ARGUMENT", "says": [says.lower()]} if says else {}
    return command("validate", target={"target": target, **options}, gives=gives)


VALIDATION = [
    Scenario(
        "Limits of a producer are checked before anything is sent",
        "producer-valid producer-negative-epoch producer-zero-max-batch-bytes"
        " producer-negative-max-batch-bytes producer-zero-max-batch-items"
        " producer-negative-max-batch-items",
        [
            validated("idempotent-producer", "", producerId="p", epoch=0, maxBatchBytes=1024),
            validated("idempotent-producer", "epoch", producerId="p", epoch=-1),
            validated("idempotent-producer", "id", producerId=""),
            *(
                validated("idempotent-producer", name, producerId="p", **{name: value})
                for name in ("maxBatchBytes", "maxBatchItems")
                for value in (0, -1)
            ),
        ],
    ),
    Scenario(
        "A retry policy is checked before anything is sent",
        "retry-options-valid retry-options-negative-max-retries retry-options-zero-initial-delay"
        " retry-options-negative-initial-delay retry-options-max-less-than-initial"
        " retry-options-multiplier-less-than-one",
        [
            validated(
                "retry-options",
                "",
                maxRetries=3,
                initialDelayMs=100,
                maxDelayMs=5000,
                multiplier=2.0,
            ),
            validated("retry-options", "", maxRetries=0),
            validated("retry-options", "maxRetries", maxRetries=-1),
            validated("retry-options", "initialDelayMs", initialDelayMs=0),
            validated("retry-options", "initialDelayMs", initialDelayMs=-100),
            validated("retry-options", "maxDelayMs", initialDelayMs=1000, maxDelayMs=500),
            validated("retry-options", "multiplier", multiplier=0.5),
        ],
    ),
]

SCENARIOS = [*BY_CLIENT, *VALIDATION]
