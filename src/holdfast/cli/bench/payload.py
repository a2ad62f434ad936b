"""What is appended: bytes that are the same for the same seed."""

from hashlib import shake_128

from holdfast.errors import SettingsError
from holdfast.protocol.content import JSON, is_text, media_type

__all__ = ["check_content_type", "payload"]

TEXT_LETTERS = bytes.maketrans(bytes(range(256)), bytes(97 + byte % 26 for byte in range(256)))


def payload(seed: int, content_type: str, size_bytes: int) -> bytes:
    """So many bytes of a type: letters for text, a string for JSON, anything for others."""
    drawn = shake_128(str(seed).encode()).digest(size_bytes)
    media = media_type(content_type)
    if media == JSON:
        return b'"' + drawn.translate(TEXT_LETTERS)[: size_bytes - 2] + b'"'
    if is_text(media):
        return drawn.translate(TEXT_LETTERS)
    return drawn


def check_content_type(content_type: str) -> None:
    """Insist on something that can be sent as a header."""
    if not (content_type.isascii() and content_type.isprintable() and "/" in content_type):
        raise SettingsError(f"--content-type: expected TYPE/SUBTYPE, got {content_type!r}")
