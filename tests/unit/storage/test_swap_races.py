"""A swap whose packs are verified beside other work, and what that work may do meanwhile."""

import pytest

from holdfast.errors import SwapRefusedError
from holdfast.objects.pack_merge import merge_packs
from holdfast.storage.commands import CollectGarbage, SwapPacks
from holdfast.storage.merge import plan_merge
from tests.unit.storage.rig import DAY_S


def test_pack_collected_while_it_was_verified_is_not_put_into_use(rig):
    number = rig.log.create("bucket/s", b"bytes")
    rig.flush()
    (old,) = rig.packs
    new = merge_packs(rig.memory, rig.clock, plan_merge(rig.writer, [old]))
    rig.clock.advance(2 * DAY_S)
    command = SwapPacks([new.name], [old.name])
    verified = rig.worker.verify_swap(command)
    rig.worker.handle(CollectGarbage())
    assert new.name not in rig.memory.objects
    with pytest.raises(SwapRefusedError):
        rig.worker.finish_swap(command, verified)
    assert rig.packs == [old]
    assert rig.stored(number) == b"bytes"
