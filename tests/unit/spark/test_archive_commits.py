"""Tables take in each batch once, whenever their driver is killed, and whoever else tries."""

import pickle
import random
import shutil

import pytest

from holdfast import failpoints
from holdfast.errors import ConflictError, SettingsError, StoreError
from holdfast.spark.archiving.files import ArchiveTask, MergeTask, merge_task, write_task
from holdfast.spark.archiving.layout import TableLayout
from holdfast.spark.archiving.table import TableIdentity, TableState, claim, new_batch
from holdfast.spark.connection import SparkConnection
from holdfast.spark.reading.source import ReadSource
from tests.unit.spark.archived import (
    FORMATS,
    add,
    leftovers,
    output_at,
    place_at,
    seen,
    table_of,
    written,
)

POINTS = {
    "parquet": ("archive.decided", "archive.moving", "archive.moved"),
    "delta": ("archive.ready",),
    "iceberg": ("archive.ready",),
}


class Killed(BaseException):
    """In place of a signal that nobody could catch."""


@pytest.fixture(params=FORMATS)
def form(request):
    return request.param


@pytest.fixture
def killed_at(monkeypatch):
    """Have this process end at a failpoint, the second time that it is passed or so."""

    def arm(name, visits=1):
        left = visits

        def hook(passed):
            nonlocal left
            left -= passed == name
            if passed == name and not left:
                raise Killed

        monkeypatch.setattr(failpoints, "hook", hook if name else None)

    return arm


def opened(form, path, *, alone=True):
    table = table_of(form, place_at(path))
    return table, table.open(alone=alone)


def test_batches_follow_one_another(form, tmp_path):
    table, state = opened(form, tmp_path)
    assert state == TableState()
    add(table, state, [1, 2, 3])
    table, state = opened(form, tmp_path)
    assert state.until == f"{3:020d}"
    add(table, state, [4, 5])
    assert seen(form, tmp_path) == [1, 2, 3, 4, 5]
    assert leftovers(form, tmp_path) == set()


@pytest.mark.parametrize(
    ("form", "point"), [(form, point) for form in FORMATS for point in POINTS[form]]
)
def test_killed_at_any_step_and_run_again(form, point, tmp_path, killed_at):
    _, state = opened(form, tmp_path)
    add(table_of(form, place_at(tmp_path)), state, [1, 2, 3])
    killed_at(point)
    table, state = opened(form, tmp_path)
    with pytest.raises(Killed):
        add(table, state, [4, 5])
    killed_at("")
    table, state = opened(form, tmp_path)
    # Either it counts, or it does not and the next run does it again.
    assert seen(form, tmp_path) == list(range(1, int(state.until) + 1))
    if state.until == f"{3:020d}":
        add(table, state, [4, 5])
    assert seen(form, tmp_path) == [1, 2, 3, 4, 5]
    assert leftovers(form, tmp_path) == set()


def test_killed_before_the_commit(form, tmp_path):
    table, state = opened(form, tmp_path)
    state = add(table, state, [1, 2])
    written(table, new_batch(state, f"{4:020d}"), [3, 4])
    assert len(leftovers(form, tmp_path)) == 2
    # Somebody else may be at it, if nobody can tell.
    opened(form, tmp_path, alone=False)
    assert len(leftovers(form, tmp_path)) == 2
    _, found = opened(form, tmp_path)
    assert found.until == state.until
    assert leftovers(form, tmp_path) == set()
    assert seen(form, tmp_path) == [1, 2]


@pytest.mark.parametrize("seed", range(6))
def test_any_history_of_kills_ends_the_same(form, seed, tmp_path, killed_at):
    chance = random.Random(seed)
    done = 0
    while done < 12:
        try:
            table, state = opened(form, tmp_path)
            for _ in range(chance.randint(1, 3)):
                if chance.random() < 0.5:
                    killed_at(chance.choice(POINTS[form]), chance.randint(1, 2))
                done = int(state.until or 0)
                state = add(table, state, list(range(done + 1, done + 1 + chance.randint(1, 3))))
        except Killed:
            killed_at("")
    killed_at("")
    _, state = opened(form, tmp_path)
    assert seen(form, tmp_path) == list(range(1, int(state.until) + 1))
    assert leftovers(form, tmp_path) == set()


def test_of_two_runs_at_once_one_is_refused(form, tmp_path):
    table, state = opened(form, tmp_path)
    state = add(table, state, [1])
    ours, theirs = (opened(form, tmp_path, alone=False) for _ in range(2))
    mine = new_batch(ours[1], f"{3:020d}")
    files = written(ours[0], mine, [2, 3])
    add(*theirs, [2, 3, 4])
    with pytest.raises(
        ConflictError, match=r"^Another run is archiving to .*: this one has committed nothing"
    ):
        ours[0].commit(mine, files, TableLayout())
    assert seen(form, tmp_path) == [1, 2, 3, 4]
    assert opened(form, tmp_path)[1].until == f"{4:020d}"
    assert leftovers(form, tmp_path) == set()


def test_the_second_is_refused_even_if_it_commits_at_the_same_moment(form, tmp_path, monkeypatch):
    table, state = opened(form, tmp_path)
    state = add(table, state, [1])
    theirs = opened(form, tmp_path, alone=False)
    point = "archive.decided" if form == "parquet" else "archive.ready"
    won = []

    def hook(name):
        if name == point and not won:
            won.append(True)
            add(*theirs, [2, 3])

    monkeypatch.setattr(failpoints, "hook", hook)
    # With Parquet the decision is made by then: the other one is refused.
    with pytest.raises(ConflictError):
        add(table, state, [2, 3])
    monkeypatch.setattr(failpoints, "hook", None)
    opened(form, tmp_path)
    assert seen(form, tmp_path) == [1, 2, 3]


def test_another_one_may_maintain_an_iceberg_table(tmp_path):
    table, state = opened("iceberg", tmp_path)
    state = add(table, state, [1])
    batch = new_batch(state, f"{2:020d}")
    files = written(table, batch, [2])
    path = tmp_path / files[0].path
    other = path.with_name("others.parquet")
    shutil.copy(path, other)
    begun = table._begun

    def late(*given):
        found = begun(*given)
        if other.exists() and not done:
            done.append(True)
            table._table().add_files([f"file://{other}"])
        return found

    done = []
    object.__setattr__(table, "_begun", late)
    table.commit(batch, files, TableLayout())
    assert seen("iceberg", tmp_path) == [1, 2, 2]
    assert opened("iceberg", tmp_path)[1].until == f"{2:020d}"


def test_small_files_become_one(form, tmp_path, killed_at):
    table, state = opened(form, tmp_path)
    for number in range(1, 9, 2):
        state = add(table, state, [number, number + 1])
    small = table.files(1 << 20)
    assert len(small) == 8
    # Earlier versions of a Delta table have them until they are vacuumed.
    former = {each.path for each in small} if form == "delta" else set()
    for point in ("archive.decided", "archive.moving", "archive.removing", "archive.ready", ""):
        table, state = opened(form, tmp_path)
        small = table.files(1 << 20)
        killed_at(point)
        batch = new_batch(state, state.until)
        folder, stem = table.begin(batch)
        new = [
            file
            for number, day in enumerate(sorted({each.date for each in small}))
            for file in merge_task(
                output_at(table.place, folder, stem),
                MergeTask(number, tuple(each for each in small if each.date == day)),
            )
        ]
        try:
            table.replace(batch, small, new, TableLayout(), same_rows=True)
        except Killed:
            killed_at("")
        table, found = opened(form, tmp_path)
        assert found.until == state.until
        assert seen(form, tmp_path) == list(range(1, 9))
        former |= {each.path for each in new} if form == "delta" else set()
        assert leftovers(form, tmp_path) <= former
    assert len(table.files(1 << 20)) == 2


def test_columns_are_kept_with_the_table_and_may_grow(form, tmp_path):
    table, state = opened(form, tmp_path)
    add(table, state, [1], TableLayout("columns", {"a": "long"}))
    table, state = opened(form, tmp_path)
    assert state.columns == {"a": "long"}
    add(table, state, [2], TableLayout("columns", {"a": "long", "timestamp": "json"}))
    assert opened(form, tmp_path)[1].columns == {"a": "long", "timestamp": "json"}
    assert seen(form, tmp_path) == [1, 2]


def test_a_delta_table_whose_first_commit_was_cut_short_keeps_its_columns(tmp_path, killed_at):
    table, state = opened("delta", tmp_path)
    killed_at("archive.ready")
    with pytest.raises(Killed):
        add(table, state, [1], TableLayout("columns", {"a": "long"}))
    killed_at("")
    assert opened("delta", tmp_path)[1] == TableState("", 0, {"a": "long"})


def test_a_file_that_the_driver_does_not_see_is_not_committed(form, tmp_path):
    table, state = opened(form, tmp_path)
    batch = new_batch(state, f"{1:020d}")
    files = written(table, batch, [1])
    (tmp_path / files[0].path).unlink()
    with pytest.raises(
        StoreError, match="but the driver does not see it; the place must be shared"
    ):
        table.commit(batch, files, TableLayout())


def test_a_damaged_decision_is_said_to_be_damaged(tmp_path):
    table, state = opened("parquet", tmp_path)
    add(table, state, [1])
    (decision,) = (tmp_path / "_holdfast" / "commits").iterdir()
    decision.write_bytes(b'{"number":')
    with pytest.raises(StoreError, match=r"commits/0+1\.json of the table at .* is damaged"):
        opened("parquet", tmp_path)


IDENTITY = TableIdentity("parquet", "events", "abc", [], "", "binary", "date")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "delta"}, "'format': the table at {} has the format parquet, not delta."),
        ({"bucket": "b"}, "'to': the table at {} is the archive of the bucket 'events', not"),
        ({"store_id": "x"}, "'to': the table at {} is the archive of another server's bucket"),
        (
            {"json_as": "text"},
            "'json_as': the table at {} was made with 'binary', which cannot",
        ),
        ({"streams": ["a"]}, "'streams': the table at {} was made with [], which cannot become"),
        ({"partition_by": "none"}, "'partition_by': the table at {} was made with 'date'"),
    ],
)
def test_a_table_stays_what_it_is(change, words, tmp_path):
    place = place_at(tmp_path)
    claim(place, IDENTITY)
    claim(place, IDENTITY)
    other = TableIdentity(
        **{name: getattr(IDENTITY, name) for name in TableIdentity.__struct_fields__} | change
    )
    with pytest.raises(SettingsError) as caught:
        claim(place, other)
    assert caught.value.message.startswith(words.format(tmp_path))


def test_a_place_that_has_something_else_is_refused(tmp_path):
    (tmp_path / "mine.parquet").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"is not a table of this job, and is not empty .*mine"):
        claim(place_at(tmp_path), IDENTITY)
    assert [each.name for each in tmp_path.iterdir()] == ["mine.parquet"]


def test_only_one_run_at_a_time(tmp_path):
    place = place_at(tmp_path)
    with place.alone() as alone:
        assert alone
        with pytest.raises(ConflictError, match="Another run is archiving"):
            with place_at(tmp_path).alone():
                pass
    with place.alone() as alone:
        assert alone


def test_a_relative_place_is_the_drivers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = place_at("lake")
    claim(place, IDENTITY)
    sent = pickle.dumps(place)
    (tmp_path / "executor").mkdir()
    monkeypatch.chdir(tmp_path / "executor")
    found = pickle.loads(sent)
    assert found.directory == tmp_path / "lake"
    found.check_shared()
    # On another machine the same path has nothing, and nothing is written there.
    shutil.move(tmp_path / "lake", tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"^'to': an executor does not see .*lake.* be shared by"):
        write_task(output_at(found), ArchiveTask(0, ReadSource(SparkConnection(), "b"), ()))
    assert not (tmp_path / "lake").exists()


def test_places_are_named_in_many_ways(tmp_path):
    assert place_at(tmp_path).directory == place_at(tmp_path.as_uri()).directory == tmp_path
    env = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a"}
    found = place_at("s3://b/x/", env | {"AWS_SECRET_ACCESS_KEY": "c"})
    assert (found.name, found.directory, found.store.endpoint) == (
        "s3://b/x",
        None,
        env["AWS_ENDPOINT_URL"],
    )
    with pytest.raises(SettingsError, match=r"^'to': expected a path, file:///path, s3://"):
        place_at("ftp://x/y")
    with pytest.raises(SettingsError, match="'to_endpoint' and 'to_region' are for places in S3"):
        type(found).of("/x", "http://127.0.0.1:9", "", {})
