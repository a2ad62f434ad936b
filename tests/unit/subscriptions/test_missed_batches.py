"""Subscriptions hear of every batch, whatever others who are told of them do."""

import pytest

from tests.unit.subscriptions.desk import Desk


@pytest.fixture
def desk():
    desk = Desk()
    for path in ("events/a", "other/b", "wake/pool"):
        desk.create_stream(path)
    return desk


def test_another_watcher_that_leaves_hides_nothing(desk):
    desk.pull()
    watchers = desk.engine.shard.watchers

    def leaves(_batch, _entries):
        watchers.remove(leaves)

    watchers.insert(0, leaves)
    desk.append("events/a")
    assert [event["stream"] for event in desk.events("wake/pool")] == ["events/a"]


def test_another_watcher_that_fails_hides_nothing(desk):
    def fails(_batch, _entries):
        raise ValueError("a defect")

    desk.engine.shard.watchers.append(fails)
    desk.pull()
    desk.append("events/a")
    assert [event["stream"] for event in desk.events("wake/pool")] == ["events/a"]


def test_batch_that_was_missed_is_heard_of_with_the_next(desk):
    desk.pull()
    watchers = desk.engine.shard.watchers
    [told] = watchers
    watchers.clear()
    desk.append("events/a")
    desk.create_stream("events/new", 1)
    assert desk.events("wake/pool") == []
    watchers.append(told)
    desk.append("other/b")
    # One wake for both, and each of them is pending.
    assert len(desk.events("wake/pool")) == 1
    streams = {each["path"]: each["has_pending"] for each in desk.claim().json["streams"]}
    assert streams == {"events/a": True, "events/new": True}
