"""The proxy's part of the small world: a secret, an upstream, and a stream with one response."""

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx

from tests.upstreams import Upstream

if TYPE_CHECKING:
    from schemathesis import Case

SECRET = "a-secret-of-the-proxy-of-forty-bytes-long"
SERVICE = {"Authorization": f"Bearer {SECRET}"}
PROXY = "/v1/proxy"
# What takes the proxy's secret.
GUARDED = (PROXY, "/cluster/packs")


def is_steered(case: "Case", location: str) -> bool:
    """Whether a part of a request may be changed: not if it is invalid on purpose."""
    return case.meta is None or not any(
        each.value == location and case.meta.is_negative_at(each) for each in case.meta.components
    )


class ProxyWorld:
    """What requests to the proxy ask for more often than chance would."""

    def __init__(self, client: httpx.Client, upstream: Upstream) -> None:
        self._client = client
        self._urls = (
            upstream.url("/fixed", body="hello"),
            upstream.url("/bytes", count=10_000, piece=1000),
            upstream.url("/redirect"),
            "http://127.0.0.1:1/",
        )
        self._location = ""

    def prepare(self, case: "Case", draw: int) -> None:
        """Have a stream there, and the request ask for it, most of the time."""
        if not case.operation.path.startswith(GUARDED) or draw % 8 == 0:
            return
        if is_steered(case, "header"):
            case.headers.update(SERVICE)
        if is_steered(case, "query"):
            case.query.pop("secret", None)
        if not case.operation.path.startswith(PROXY):
            return
        self._restore()
        signed = urlsplit(self._location)
        if case.path_parameters:
            if is_steered(case, "path"):
                case.path_parameters["stream_id"] = signed.path.rpartition("/")[2]
            if is_steered(case, "query"):
                case.query.update({name: each for name, (each,) in parse_qs(signed.query).items()})
        elif is_steered(case, "header"):
            self._steer_post(case.headers, draw)

    def has_granted(self, case: "Case") -> bool:
        """Whether the request has the secret, or the stream's signature."""
        signature = case.query.get("signature")
        return case.headers.get("Authorization") == SERVICE["Authorization"] or (
            bool(signature) and f"signature={signature}" in self._location
        )

    def _restore(self) -> None:
        if self._location and self._client.get(self._location).is_success:
            return
        headers = SERVICE | {"Upstream-URL": self._urls[0], "Upstream-Method": "GET"}
        created = self._client.post(PROXY, headers=headers)
        assert created.status_code == 201
        self._location = created.headers["Location"]

    def _steer_post(self, headers: Any, draw: int) -> None:
        headers["Upstream-URL"] = self._urls[draw % len(self._urls)]
        if draw % 3:
            headers["Upstream-Method"] = "POST"
        if draw % 5 < 2:
            headers["Use-Stream-URL"] = self._location
        elif draw % 5 < 4:
            headers.pop("Use-Stream-URL", None)
        if draw % 2:
            headers.pop("Session-Id", None)
