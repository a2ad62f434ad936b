"""Certificates that a client trusts besides the system's."""

from __future__ import annotations

import ssl
from functools import cache

from holdfast.errors import SettingsError
from holdfast.net.outbound import tls_context


def trusting(ca_file: str) -> ssl.SSLContext | None:
    """What trusts the certificates of a file as well as the system's; None if none is named."""
    if not ca_file:
        return None
    tls = tls_context()
    try:
        tls.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"the certificates in {ca_file} cannot be read: {error}") from None
    return tls


@cache
def shared(ca_file: str) -> ssl.SSLContext:
    """One for all clients of a process, where they come and go.

    Reading the system's certificates takes longer than most requests.
    """
    return trusting(ca_file) or tls_context()
