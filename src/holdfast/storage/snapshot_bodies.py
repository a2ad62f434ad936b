"""Reading snapshot bodies from a store, each byte verified: for checks, backups and restores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64

from holdfast.errors import PackCorruptError
from holdfast.storage.object_copy import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.objects.store import ObjectStore
    from holdfast.storage.manifest import CopiedObject


def verified_body(store: ObjectStore, name: str, size_bytes: int, checksum: int) -> Iterator[bytes]:
    """The body piece by piece, if it is what was stored; raises before the last piece if not."""
    found = store.size(name)
    if found != size_bytes:
        raise _damaged(store, name, f"it has {found} bytes instead of {size_bytes}")
    digest = xxh3_64()
    for at in range(0, size_bytes, PIECE_BYTES):
        piece = store.read(name, at, PIECE_BYTES)
        digest.update(piece)
        if at + PIECE_BYTES < size_bytes:
            yield piece
    if digest.intdigest() != checksum:
        raise _damaged(store, name, "it does not match its checksum")
    if size_bytes:
        yield piece


def copied_pieces(store: ObjectStore, copied: CopiedObject) -> Iterator[bytes]:
    """The verified bytes of a body that a backup needs."""
    return verified_body(store, copied.name, copied.size_bytes, int(copied.xxh3, 16))


def _damaged(store: ObjectStore, name: str, what: str) -> PackCorruptError:
    return PackCorruptError(f"The snapshot {name} is damaged: {what}. It is in {store.url}.")
