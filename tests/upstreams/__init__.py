"""Real upstreams on loopback, which behave as the URL asks them to.

    with Upstream() as upstream:  # or the fixtures `upstream` and `secure_upstream`
        url = upstream.url("/bytes", count=100_000, piece=1000, gate=1)
        ...  # have something call it
        request = upstream.next()  # method, path, headers, body as they arrived
        request.release(3)  # three pieces of the body go out
        ...
        request.wait_for_disconnect()

The path says what is answered (see routes.py), the query how it is delivered (see replies.py):

    upstream.url("/fixed", body="hello", status=429, header=["Retry-After: 3", "Set-Cookie: a=b"])
    upstream.url("/fixed", body="hello", framing="close")  # no length: ends with the connection
    upstream.url("/bytes", count=5000, piece=1000, after=2, end="cut")  # dropped mid-body
    upstream.url("/bytes", count=5000, framing="length", after=1, end="reset")  # RST
    upstream.url("/fixed", body="hello", encoding="gzip", piece=1, truncate=4)
    upstream.url("/fixed", body="hello", piece=1, after=2, end="silent")
    upstream.url("/never")  # takes the request, and says nothing
    upstream.url("/redirect", to="http://127.0.0.1/", status=307)
    upstream.url("/error", status=500, count=100_000)
    upstream.url("/echo")  # method, path, headers and body of the request, as JSON
    upstream.url("/auth", status=403)
    upstream.url("/v1/chat/completions", text="so many words", gate=1)  # OpenAI's events
    upstream.url("/v1/messages", text="so many words", gate=1)  # Anthropic's

What `/bytes` answers is `pattern(count)`. `upstream.routes["/mine"] = lambda request: Reply(...)`
adds a path. `Upstream(tls=True)` speaks TLS, with HTTP/2 for those who want it; a stream is reset
there where a connection would be here.
"""

from tests.upstreams.replies import Reply, pattern
from tests.upstreams.requests import Request
from tests.upstreams.server import Upstream

__all__ = ["Reply", "Request", "Upstream", "pattern"]
