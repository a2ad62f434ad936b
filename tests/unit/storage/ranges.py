"""A range reader whose answers the test gives when it wants, and blocks small enough to count."""

from holdfast.format import pack_builder, packs
from holdfast.storage import blocks, cold


class HeldRanges:
    """Keeps what was asked for until `answer`."""

    def __init__(self, store):
        self.store = store
        self.asked = []

    def read(self, name, at, size, done):
        self.asked.append((name, at, size, done))

    def close(self):
        """Nothing to let go of."""

    @property
    def requests(self):
        return [(name, at, size) for name, at, size, _ in self.asked]

    def answer(self, at=0, outcome=None):
        """Answer what was asked for, with what is in the store unless something else is given."""
        name, start, size, done = self.asked.pop(at)
        done(self.store.read(name, start, size) if outcome is None else outcome)

    def answer_all(self):
        while self.asked:
            self.answer()


def make_blocks_small(monkeypatch, block_bytes, request_blocks=4):
    """Have packs written and read with blocks of this many bytes."""
    for module in (packs, pack_builder, blocks, cold):
        monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(blocks, "_REQUEST_BLOCKS_MAX", request_blocks)
