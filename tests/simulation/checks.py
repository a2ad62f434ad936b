"""Comparing what the node has with what the model says."""

from holdfast.engine.stream import Stream
from holdfast.format.rows import decode_row, stored_bytes
from holdfast.storage.catalog_check import Findings
from holdfast.storage.check import verify_catalog
from tests.simulation.model import Version, Violation
from tests.simulation.relatives import BUCKET, DOCUMENT


def same_stream(model, node, version, seen):
    """Whether what the node has is this version, deadline aside."""
    number = model.numbers.get(version.birth)
    meta = seen.meta
    return same_relatives(model, version, seen) and (
        (seen.number not in model.numbers.values() if number is None else seen.number == number)
        and meta.content_type == version.content_type
        and meta.ttl_s == version.ttl_s
        and meta.expires_at_ms == version.expires_at_ms
        and seen.tail == version.tail
        and seen.closed == version.closed
        and seen.closer == version.closer
        and seen.seq == version.seq
        and node.producers(seen) == version.producers
        and seen.created_ms == version.created_ms
        and seen.last_write_ms == version.last_write_ms
    )


def same_relatives(model, version, seen):
    """Whether it comes from where it should, starts there, and has so many forks."""
    fork = seen.meta.fork
    if version.fork is None or fork is None:
        same_fork = version.fork is None and fork is None
    else:
        birth, name, offset = version.fork
        number = model.numbers.get(birth, fork.source)
        same_fork = (fork.source, fork.name, fork.offset) == (number, name, offset)
    snapshot = "" if seen.snapshot is None else seen.snapshot.object
    return (
        same_fork
        and snapshot == version.snapshot
        and (seen.start, seen.earliest) == (version.start, version.earliest)
        and (seen.forks, seen.deleted) == (version.forks, version.deleted)
    )


def differences(version, seen):
    """For messages: what is there and what should be."""
    fields = ("number", "tail", "closed", "closer", "seq", "producers", "created_ms")
    fields = (*fields, "last_write_ms", "deadline_ms", "meta", "start", "earliest", "snapshot")
    fields = (*fields, "forks", "deleted")
    have = {name: getattr(seen, name) for name in fields} if seen is not None else None
    want = version
    if isinstance(version, Version):
        want = {**version._asdict(), "data": version.tail}
    return f"\n  there is:  {have}\n  should be: {want}"


def check_hot_bytes(version, stream):
    """What is in memory of a stream is what was written."""
    if not isinstance(stream, Stream):
        return
    data = b"".join(stream.chunks)
    if stream.base + len(data) != stream.tail or data != version.data[stream.base :]:
        raise Violation(f"the bytes of {version.name} in memory are wrong")
    if stream.ends and stream.ends[-1] != stream.tail:
        raise Violation(f"the ends of {version.name} in memory are wrong")


def audit(model, node, names, now_ms):
    """Everything the node knows of every stream is as the model says, right now."""
    streams = 0
    buckets = {}
    for name in names:
        seen, version = node.seen(name), model.published.get(name)
        if seen is not None:
            streams += 1
            counts = buckets.setdefault(name.partition("/")[0], [0, 0])
            counts[0] += not seen.deleted
            counts[1] += stored_bytes(seen)
        if version is None or (seen is None and model.is_due(version, now_ms)):
            if seen is not None:
                raise Violation(f"{name} should not be there{differences(version, seen)}")
            continue
        if seen is None or not same_stream(model, node, version, seen):
            raise Violation(f"{name} is wrong{differences(version, seen)}")
        if seen.deadline_ms != model.deadline_ms(version):
            raise Violation(
                f"{name} expires at {seen.deadline_ms} instead of {model.deadline_ms(version)}"
            )
        model.numbers[version.birth] = seen.number
        check_hot_bytes(version, seen)
    state, tier = node.shard.state, node.shard.tier
    hot_bytes = sum(len(chunk) for each in state.by_number.values() for chunk in each.chunks)
    if hot_bytes > tier.cost_bytes:
        raise Violation(f"{hot_bytes} bytes are in memory, and count as {tier.cost_bytes}")
    audit_catalog(node.catalog._connection)
    audit_values(model, state, buckets)
    size_bytes = sum(size_bytes for _, size_bytes in buckets.values())
    if (state.streams, state.stored_bytes) != (streams, size_bytes):
        raise Violation(
            f"there are {streams} streams with {size_bytes} bytes, but the node counts "
            f"{state.streams} with {state.stored_bytes}"
        )


def audit_values(model, state, buckets):
    """Buckets are what their streams add up to or were created, documents are as was told."""
    explicit = {name.removeprefix(BUCKET) for name in model.published if name.startswith(BUCKET)}
    counted = {
        name: (name in explicit, *buckets.get(name, (0, 0))) for name in explicit | buckets.keys()
    }
    counted = {name: counts for name, counts in counted.items() if any(counts)}
    rows = state.buckets | state._former
    there = {name: (row.explicit, row.streams, row.size_bytes) for name, row in rows.items()}
    if there != counted:
        raise Violation(f"the buckets are {there}, and should be {counted}")
    told = {
        name.removeprefix(DOCUMENT): value
        for name, value in model.published.items()
        if name.startswith(DOCUMENT)
    }
    if state.documents != told:
        raise Violation(f"the documents are {state.documents}, and should be {told}")


def audit_catalog(connection):
    """What the catalog counts is what is in it, and no stream has a gap."""

    def rows(statement):
        return connection.execute(statement).fetchall()

    facts = dict(rows("SELECT name, value FROM facts"))
    (streams,) = rows("SELECT count(*) FROM streams")[0]
    (stored_bytes,) = rows("SELECT coalesce(sum(length), 0) FROM extents")[0]
    if (facts["streams"], facts["stored_bytes"]) != (streams, stored_bytes):
        raise Violation(f"the catalog counts {facts}, not {streams} with {stored_bytes} bytes")
    at, first = {}, {}
    for stream, start, length in rows("SELECT stream, start, length FROM extents ORDER BY 1, 2"):
        if start != at.get(stream, start):
            raise Violation(f"stream {stream:x} has a gap or an overlap at {start}")
        first.setdefault(stream, (start, start + length))
        at[stream] = start + length
    for number, encoded in rows("SELECT number, row FROM streams"):
        row = decode_row(encoded)
        start, end = first.pop(number, (row.start, row.start + 1))
        if row.tail != at.get(number, row.start) or not start <= row.start < end:
            raise Violation(f"stream {number:x} has not all of its bytes in packs")
    if first:
        raise Violation(f"there are extents of streams that do not exist: {first}")
    for name, dead_bytes in rows(
        "SELECT name, data_bytes - dead_bytes - "
        "(SELECT coalesce(sum(length), 0) FROM extents WHERE pack = id) AS lost "
        "FROM packs WHERE retired_ms IS NULL AND lost != 0"
    ):
        raise Violation(f"{name} has {dead_bytes} more dead bytes than it says")


def verify_packs(store, path):
    """What `holdfast check` does: it is to find nothing."""
    findings = Findings()
    verify_catalog(store, path, findings, lambda _done, _total: None)
    if not findings.ok:
        raise Violation(f"a check finds damage: {findings.of('damage')}")


def settle_after_crash(model, node, floors, names, now_ms):
    """Find out which pending writes a crash has spared, and which renewals; adopt that."""

    def matches(name, version):
        if name not in names:
            return node.value(name) == version
        seen = node.seen(name)
        if version is None:
            return seen is None
        # Renewals by reads may be lost, but not those that the log had taken.
        floor_ms = version.deadline_ms
        if floor_ms is not None:
            floor_ms = max(floor_ms, floors.get(version.birth, 0))
        if seen is None:
            return floor_ms is not None and floor_ms <= now_ms
        if not same_stream(model, node, version, seen):
            return False
        if floor_ms is None:
            return seen.deadline_ms is None
        return floor_ms <= seen.deadline_ms <= model.deadline_ms(version)

    for name in {**dict.fromkeys(names), **model.published}:
        if model.last_effect(name) is None and not matches(name, model.published.get(name)):
            version, seen = model.published.get(name), node.seen(name)
            raise Violation(f"a crash has changed {name}{differences(version, seen)}")
    try:
        count = model.settled(matches)
    except Violation as violation:
        shown = "".join(
            differences(version, node.seen(name))
            for effect in model.pending
            for name, version in effect.changes.items()
        )
        raise Violation(f"after a crash {violation}{shown}") from None
    model.publish(count)
    model.drop()
    for name in names:
        seen, version = node.seen(name), model.published.get(name)
        if version is None:
            continue
        if seen is None:
            del model.published[name]
        elif version.deadline_ms is not None:
            model.renewed[version.birth] = seen.deadline_ms
    return count
