"""Findings of schemathesis that are as they should be, each with the reason.

Most are about valid requests that are refused: OpenAPI describes each parameter and field by
itself, but not how they depend on one another or on what is stored. Everything that is not listed
here makes `test_openapi.py` fail.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemathesis import Case, Response
    from schemathesis.core.failures import Failure

# Besides those that schemathesis expects: 410 and 412, like 404 and 409, are about what is stored.
STATE_STATUSES = ["401", "403", "404", "409", "410", "412", "429", "5xx"]
CHECKS = {
    "positive_data_acceptance": {"expected-statuses": ["2xx", "3xx", *STATE_STATUSES]},
    "negative_data_rejection": {"expected-statuses": ["400", "405", *STATE_STATUSES]},
}

# Messages of responses to valid requests that are refused.
REFUSED = {
    "Parameters that depend on one another.": (
        "A live read needs an offset",
        "Both offset and last say where to start",
        "must be sent together or not at all",
        "Stream-TTL or Stream-Expires-At, not both",
        "need Stream-Forked-From",
        "Stream-Fork-Sub-Offset needs Stream-Fork-Offset",
        "The header Upstream-(URL|Method) is needed",
        "Stream-Message-Lengths (adds up to|is for byte streams)",
    ),
    "Fields of a body that depend on one another.": (
        "At least one of pattern and streams is needed",
        "A webhook subscription needs",
        "A pull-wake subscription needs",
        "wake stream cannot be one of its streams",
    ),
    "Offsets and cursors that are not in the stream or the log.": (
        "is past the tail",
        "is inside a JSON message",
        "is not where a message ends",
        "is past what follows offset",
        "The cursor( in '(after|until)')? is past",
        "larger than any offset can be",
    ),
    "Names of streams and subscriptions: lengths count bytes, and some characters are refused.": (
        "is not a stream path",
        "Stream-Forked-From is the path of a stream's URL",
        "The (bucket|stream) id .* is (invalid|reserved)",
        "A stream id must not be",
        "The path (holds|is longer|\\{bucket\\}/\\{stream\\} is longer)",
        "The stream's bucket or id is empty",
        "A subscription's id has 1 to 256 bytes",
        "An id must not hold a slash",
        "The pattern",
    ),
    "The body of a part has a form that OpenAPI cannot describe.": (
        "is not a sequence of whole appends",
    ),
    "A request for subscriptions of the other type.": ("This request is for",),
    "The body of many snapshots is not JSON, and OpenAPI cannot describe it.": (
        "Snapshot 1 of the body has no line",
        "The line before snapshot 1 is not what it should be",
        "The body has no snapshots",
    ),
    "An append needs bytes unless it closes the stream, and [] holds no message.": (
        "The body is empty",
        "An empty array appends nothing",
    ),
    "The lengths of messages add up to the body, and a JSON stream has none.": (
        "Stream-Message-Lengths adds up to",
        "Stream-Message-Lengths is for byte streams",
    ),
    "JSON Schema counts 1000.0 as an integer.": ("Expected `int( \\| null)?`, got `float`",),
    "What an upstream or a webhook's URL is decides whether it is called.": (
        "Proxy cannot follow redirects",
        "Use-Stream-URL is not a signed URL",
        "cannot be forwarded",
        "WEBHOOK_URL_REJECTED",
    ),
}
_REFUSED = re.compile("|".join(message for group in REFUSED.values() for message in group))


def is_explained(
    failure: "Failure", case: "Case", response: "Response", has_credentials: bool
) -> bool:
    """Whether a finding is as it should be; `has_credentials` that the test has put them in."""
    kind, text = type(failure).__name__, response.content.decode(errors="replace")
    if kind == "RejectedPositiveData":
        # A HEAD does not say why. The GET of the same resource is judged by its message.
        return response.status_code == 400 and (
            case.method == "HEAD" or _REFUSED.search(text) is not None
        )
    if kind == "AcceptedNegativeData":
        # Unknown parameters and headers are ignored, as the protocol and HTTP ask for. A request
        # with the proxy's secret needs no signed URL, so a wrong part of one does not matter.
        return "unexpected properties" in failure.message or (
            "parameter `expires`" in failure.message and has_credentials
        )
    if kind == "IgnoredAuth":
        return has_credentials
    if kind == "UseAfterFree":
        # A preflight is about the server, not about the resource.
        return case.method == "OPTIONS"
    return False
