"""A server's side of digest authentication, written from RFC 7616."""

import hashlib
from urllib.request import parse_http_list, parse_keqv_list

HASHES = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}


def fields_of(header: str) -> dict[str, str]:
    """What an `Authorization: Digest` header says."""
    scheme, _, rest = header.partition(" ")
    assert scheme == "Digest"
    return parse_keqv_list(parse_http_list(rest))


def is_right(header: str, method: str, password: str) -> bool:
    """Whether the header shows that its sender knows the password."""
    said = fields_of(header)
    name = said.get("algorithm", "MD5").upper()
    digest = HASHES[name.removesuffix("-SESS")]

    def hashed(*parts: str) -> str:
        return digest(":".join(parts).encode()).hexdigest()

    secret = hashed(said["username"], said["realm"], password)
    if name.endswith("-SESS"):
        secret = hashed(secret, said["nonce"], said["cnonce"])
    what = hashed(method, said["uri"])
    if "qop" not in said:
        return said["response"] == hashed(secret, said["nonce"], what)
    counted = (said["nonce"], said["nc"], said["cnonce"], said["qop"])
    return said["response"] == hashed(secret, *counted, what)
