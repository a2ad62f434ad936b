"""The end of a stream: who closes it, and who learns of it."""

from tests.conformance.client.scenarios.writing import CLOSED, head
from tests.conformance.client.steps import (
    TEXT,
    Scenario,
    append,
    appends,
    close,
    command,
    create,
    each_of,
    ordered,
    produce,
    produce_close,
    read,
    sent_in_all,
)

END = {"upToDate": True, "streamClosed": True}

SCENARIOS = [
    Scenario(
        "A stream is closed, with or without data in it, and once more without effect",
        "close-empty-stream close-with-content close-returns-result close-idempotent"
        " head-closed-stream state-complete state-caught-up-open read-closed-stream-catchup"
        " missing-cursor-on-closed-ok",
        [
            create(),
            close(gives={"status": 200}),
            head(streamClosed=True),
            create(stream="full"),
            appends("one", "two", stream="full"),
            command("head", "full", gives={"streamClosed": False}),
            read(stream="full", gives={"data": "onetwo", "upToDate": True, "streamClosed": False}),
            *(command("close", "full", gives={"status": 200}) for _ in range(2)),
            command("head", "full", gives={"streamClosed": True}),
            read(stream="full", gives={"data": "onetwo"} | END),
        ],
    ),
    Scenario(
        "A last message closes the stream in one step",
        "close-with-final-message create-then-close-with-body"
        " head-closed-stream-returns-tail-offset",
        [
            create(),
            command("head", keep="start"),
            append("first", keep="middle"),
            close("last", gives={"status": 200}),
            sent_in_all("POST", 2),
            command("head", keep="end", gives={"streamClosed": True, "hasOffset": True}),
            ordered("start", "middle", "end"),
            read(gives={"data": "firstlast"} | END),
        ],
    ),
    Scenario(
        "A stream may be created closed, empty or with all of its data",
        "create-closed-stream create-closed-stream-with-body create-closed-with-ttl",
        [
            create(closed=True, ttlSeconds=60, gives={"status": 201}),
            head(streamClosed=True, ttlSeconds=60),
            read(gives={"chunkCount": 0} | END),
            create(stream="full", closed=True, data="all", gives={"status": 201}),
            read(stream="full", gives={"data": "all"} | END),
        ],
    ),
    Scenario(
        "A closed stream takes nothing more, until it is deleted",
        "append-to-closed-stream-fails delete-closed-stream",
        [
            create(),
            append("data"),
            close(),
            append("late", gives=CLOSED),
            command("delete", gives={"status": 200}),
            command("head", gives={"status": 404, "errorCode": "NOT_FOUND"}),
        ],
    ),
    Scenario(
        "A reader at the tail learns of the end at once, in every mode",
        "read-closed-stream-empty-eof long-poll-closed-stream-immediate"
        " sse-closed-stream-final-event read-offset-beyond-closed-tail",
        [
            create(),
            append("data"),
            read(keep="end", gives={"streamClosed": False}),
            close(),
            *(
                each_of(
                    read(live, gives={"data": "data"} | END),
                    read(live, at="end", gives={"chunkCount": 0} | END),
                )
                for live in (False, "long-poll", "sse", True)
            ),
        ],
    ),
    Scenario(
        "A producer closes the stream behind what it wrote, and again without effect",
        "idempotent-producer-close idempotent-producer-close-idempotent"
        " idempotent-producer-close-with-final-message idempotent-producer-close-conflict",
        [
            create(TEXT),
            produce("one"),
            produce_close("two", gives={"status": 200}),
            head(streamClosed=True),
            produce_close(gives={"status": 200}),
            produce_close("late", producer="another", gives=CLOSED),
            read(gives={"data": "onetwo"} | END),
        ],
    ),
    Scenario(
        "A producer that starts anew and closes with a message again changes nothing",
        "atomic-close-dedup-with-producer close-with-body-retry-different-body",
        [
            create(),
            produce_close("A", gives={"status": 200}),
            produce_close("A", gives={"status": 200}),
            produce_close("B", gives={"status": 200}),
            sent_in_all("POST", 3),
            read(gives={"data": "A"} | END),
        ],
    ),
    Scenario(
        "A producer that is detached leaves the stream open",
        "idempotent-producer-detach-does-not-close",
        [
            create(),
            produce("one"),
            command("idempotent-detach", producerId="p", gives={"status": 200}),
            head(streamClosed=False),
            append("two", gives={"status": 200}),
            read(gives={"data": "onetwo", "streamClosed": False}),
        ],
    ),
]
