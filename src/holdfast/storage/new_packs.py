"""Packs as the catalog takes them, from whoever has made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.storage.catalog_writer import NewPack

if TYPE_CHECKING:
    from holdfast.format.pack_builder import PackBuilder
    from holdfast.format.packs import PackMeta
    from holdfast.objects.pack_reader import Pack


def new_pack(
    name: str, size_bytes: int, builder: PackBuilder, meta: PackMeta, rows: int
) -> NewPack:
    """A pack that was built and uploaded here."""
    return NewPack(
        name,
        size_bytes,
        builder.data_bytes,
        sum(extent.messages for extent in builder.extents),
        rows,
        meta.has_delta,
        builder.after,
        builder.through,
        builder.salt,
        meta.created_ms,
        builder.extents,
    )


def found_pack(pack: Pack) -> NewPack:
    """A pack that is in the store, whoever put it there."""
    footer, delta, extents = pack.footer, pack.delta(), list(pack.directory())
    return NewPack(
        pack.name,
        footer.size_bytes,
        sum(extent.length for extent in extents),
        footer.messages,
        footer.rows,
        delta.meta.has_delta,
        footer.after,
        footer.through,
        footer.salt,
        delta.meta.created_ms,
        extents,
    )
