"""Query strings: the few parameters the protocol knows, each at most once."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from holdfast.errors import InvalidRequestError


def parse_query(raw: bytes) -> dict[str, str]:
    """The parameters by name; repeated ones and undecodable ones are refused."""
    parameters: dict[str, str] = {}
    if not raw:
        return parameters
    for pair in raw.split(b"&"):
        name, _, value = pair.partition(b"=")
        key = _decode(name)
        if key in parameters:
            raise InvalidRequestError(f"The query parameter {key!r} is given more than once.")
        parameters[key] = _decode(value)
    return parameters


def _decode(raw: bytes) -> str:
    if b"%" in raw or b"+" in raw:
        raw = unquote_to_bytes(raw.replace(b"+", b" "))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError("The query string is not UTF-8.") from None
