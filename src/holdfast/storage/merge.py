"""Merging in the server: what is written is handed on as the catalog takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.objects.pack_merge import merge_packs
from holdfast.storage.new_packs import new_pack

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.objects.pack_merge import Merge
    from holdfast.objects.store import ObjectStore
    from holdfast.storage.catalog_writer import NewPack


def merge(store: ObjectStore, clock: Clock, plan: Merge) -> NewPack:
    """Write the merged pack; it is in the store and durable, but not in use."""
    return new_pack(*merge_packs(store, clock, plan))
