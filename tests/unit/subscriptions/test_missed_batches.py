"""Subscriptions hear of every batch, whatever others who are told of them do."""

import pytest

from tests.unit.subscriptions.harness import Harness


@pytest.fixture
def harness():
    harness = Harness()
    for path in ("events/a", "other/b", "wake/pool"):
        harness.create_stream(path)
    return harness


def test_another_watcher_that_leaves_hides_nothing(harness):
    harness.pull()
    watchers = harness.engine.shard.watchers

    def leaves(_batch, _entries):
        watchers.remove(leaves)

    watchers.insert(0, leaves)
    harness.append("events/a")
    assert [event["stream"] for event in harness.events("wake/pool")] == ["events/a"]


def test_another_watcher_that_fails_hides_nothing(harness):
    def fails(_batch, _entries):
        raise ValueError("a defect")

    harness.engine.shard.watchers.append(fails)
    harness.pull()
    harness.append("events/a")
    assert [event["stream"] for event in harness.events("wake/pool")] == ["events/a"]


def test_batch_that_was_missed_is_heard_of_with_the_next(harness):
    harness.pull()
    watchers = harness.engine.shard.watchers
    [told] = watchers
    watchers.clear()
    harness.append("events/a")
    harness.create_stream("events/new", 1)
    assert harness.events("wake/pool") == []
    watchers.append(told)
    harness.append("other/b")
    # One wake for both, and each of them is pending.
    assert len(harness.events("wake/pool")) == 1
    streams = {each["path"]: each["has_pending"] for each in harness.claim().json["streams"]}
    assert streams == {"events/a": True, "events/new": True}
