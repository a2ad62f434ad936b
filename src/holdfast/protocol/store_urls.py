"""How object stores and S3 servers are named: what is accepted, and in which form it is kept."""

import re
from urllib.parse import urlsplit


def clean_store(text: str) -> str:
    """Accept a path, or a URL with a scheme we know and nothing secret in it."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) is None:
        return text
    url = urlsplit(text)
    if url.scheme == "file" and url.netloc in {"", "localhost"} and url.path.startswith("/"):
        return text
    plain = re.fullmatch(r"(s3|gs|az)://[\w.-]+(/[^?#\s]*)?", text, re.ASCII)
    if plain is None or re.search(r"/\.{0,2}/", f"{url.path.rstrip('/')}/"):
        raise ValueError(
            "expected a path, file:///path, s3://bucket/prefix, gs://bucket/prefix "
            "or az://container/prefix"
        )
    return text.rstrip("/")


def clean_endpoint(text: str) -> str:
    """Accept the address of an S3 server, or nothing."""
    if not text:
        return text
    try:
        url = urlsplit(text)
        good = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is none
        good = False
    if not good or not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", text, re.ASCII):
        raise ValueError("expected http://HOST[:PORT] or https://HOST[:PORT]")
    return text.rstrip("/")
