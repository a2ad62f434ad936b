"""What the client makes of servers that fail, and of networks that do."""

from tests.conformance.client.steps import (
    JSON,
    TEXT,
    Scenario,
    append,
    close,
    command,
    create,
    fault,
    read,
    sent_in_all,
    while_reading,
)

PARSE_ERROR = {"errorCode": "PARSE_ERROR"}
DATA = {"data": "data", "upToDate": True}

RETRIES = [
    *(
        Scenario(
            f"A read survives {what}",
            covers,
            [
                create(),
                append("data"),
                fault(method="GET", **happens),
                read(gives=DATA),
                sent_in_all("GET", asked),
            ],
        )
        for what, happens, asked, covers in (
            ("a 500", {"status": 500}, 2, "retry-on-500"),
            ("a 502", {"status": 502}, 2, ""),
            ("a 503", {"status": 503}, 2, "retry-on-503"),
            ("a 429, waiting as told", {"status": 429, "retry_after_s": 1}, 2, "retry-on-429"),
            ("two failures in a row", {"status": 500, "times": 2}, 3, "retry-multiple-failures"),
            ("a late answer", {"delay_s": 0.5}, 1, "delay-recovery delay-with-jitter"),
            ("one that is later still", {"delay_s": 1.0}, 1, "delay-under-timeout"),
            ("a late failure", {"delay_s": 0.2, "status": 503}, 2, "delay-then-error"),
            ("a dropped connection", {"drops": True}, 2, "connection-drop-recovery"),
            ("two of them", {"drops": True, "times": 2}, 3, "multiple-connection-drops"),
            ("an answer that breaks off", {"breaks_after": 2}, 2, ""),
        )
    ),
    Scenario(
        "A read does not repeat what no repetition mends",
        "no-retry-on-400",
        [
            create(),
            *(
                step
                for status in (400, 403, 410, 418)
                for step in (
                    fault(method="GET", status=status),
                    read(gives={"status": status, "errorCode": "UNEXPECTED_STATUS"}),
                )
            ),
            sent_in_all("GET", 4),
        ],
    ),
    Scenario(
        "A read gives up in the end",
        "retry-exhaustion-fails",
        [
            create(),
            append("data"),
            fault(method="GET", status=500, times=99),
            read(timeoutMs=1500, gives={"errorCode": "TIMEOUT"}),
        ],
    ),
    Scenario(
        "An append survives failures that say that nothing was stored",
        "append-retry-on-500 method-specific-fault append-with-delay",
        [
            create(),
            fault(method="POST", status=500),
            append("a", gives={"status": 200}),
            fault(method="POST", status=503),
            read(gives={"data": "a"}),
            append("b", gives={"status": 200}),
            fault(method="POST", delay_s=0.3),
            append("c", gives={"status": 200}),
            read(gives={"data": "abc"}),
        ],
    ),
    Scenario(
        "An append whose connection drops may have been stored, and is not sent twice",
        "append-with-connection-drop",
        [
            create(),
            fault(method="POST", loses_answer=True),
            append("a", gives={"errorCode": "NETWORK_ERROR"}),
            sent_in_all("POST", 1),
            read(gives={"data": "a"}),
            # With a producer's number it can be, and is.
            fault(method="POST", drops=True),
            append("b", producer=("p", 0, 0), gives={"status": 200}),
            read(gives={"data": "ab"}),
        ],
    ),
    Scenario(
        "Creating, closing, deleting and HEAD survive dropped connections",
        "",
        [
            fault(method="PUT", drops=True),
            create(gives={"status": 201}),
            fault(method="HEAD", drops=True),
            command("head", gives={"status": 200}),
            fault(method="POST", drops=True),
            close(gives={"status": 200}),
            fault(method="DELETE", drops=True),
            command("delete", gives={"status": 200}),
        ],
    ),
]

LIVE = [
    *(
        Scenario(
            f"A live read by {live} survives {what}",
            "",
            [
                create(),
                fault(live=live, **happens),
                while_reading(
                    live,
                    append("data"),
                    close(),
                    maxChunks=9,
                    gives={"data": "data", "streamClosed": True},
                ),
            ],
        )
        for live, what, happens in (
            ("long-poll", "a 503", {"status": 503}),
            ("long-poll", "a dropped connection", {"drops": True}),
        )
    ),
    Scenario(
        "A live read by SSE survives a 503 and a dropped connection",
        "",
        [
            create(),
            fault(live="sse", status=503),
            fault(live="sse", drops=True),
            while_reading("sse", append("data"), gives={"data": "data"}),
        ],
    ),
    Scenario(
        "The client's own choice goes on with long-polls where SSE is refused",
        "",
        [
            create(),
            append("past", keep="end"),
            fault(live="sse", status=406, times=99),
            while_reading(
                True, append("new"), at="end", waits_by="long-poll", gives={"data": "new"}
            ),
        ],
    ),
]

ANSWERS = [
    *(
        Scenario(
            f"JSON that is {what} is an error, and the next read is none",
            covers,
            [
                create(JSON),
                append('{"key":"a value"}'),
                append('{"key":"another"}'),
                fault(method="GET", **happens),
                read(gives=PARSE_ERROR),
                read(gives={"status": 200, "data": '[{"key":"a value"},{"key":"another"}]'}),
            ],
        )
        for what, happens, covers in (
            (
                "cut off in an object",
                {"truncates_to": 10},
                "truncated-json-response recovery-after-parse-error",
            ),
            ("cut off between objects", {"truncates_to": 20}, "truncated-json-array"),
            ("garbled", {"corrupts": True}, "corrupted-json-response"),
        )
    ),
    Scenario(
        "An answer without an offset is an error: something on the way has taken it",
        "missing-offset-header-fatal",
        [
            create(TEXT),
            append("data"),
            fault(method="GET", strips=("Stream-Next-Offset",)),
            read(gives=PARSE_ERROR),
            sent_in_all("GET", 1),
        ],
    ),
    Scenario(
        "A long-poll without a cursor is taken as it is",
        "missing-cursor-on-live-fatal",
        [
            create(),
            append("past", keep="end"),
            fault(live="long-poll", strips=("Stream-Cursor",), times=99),
            while_reading("long-poll", append("new"), at="end", gives={"data": "new"}),
        ],
    ),
]

SCENARIOS = [*RETRIES, *LIVE, *ANSWERS]
