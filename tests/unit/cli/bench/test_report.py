"""The picture of a run, made for real."""

from xml.etree import ElementTree as ET

import pytest

from holdfast.cli.bench import result
from holdfast.cli.bench.report import check_plot, draw
from holdfast.cli.bench.result import Latencies, Measurement
from holdfast.errors import HoldfastError, SettingsError
from tests.unit.cli.bench.test_result import progress, result_of

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def measurement():
    made = Measurement()
    made.add(progress(0, 1.0, [1000 + 3 * number for number in range(2000)]))
    made.add(progress(1, 2.2, [9000] * 10, errors={"timeout": 1}))
    return made


def test_a_png_is_a_picture(measurement, tmp_path):
    path = tmp_path / "result.png"
    check_plot(path)
    draw(result_of(measurement), path)
    assert path.read_bytes().startswith(PNG)


def test_an_svg_is_a_document(measurement, tmp_path):
    path = tmp_path / "result.svg"
    draw(result_of(measurement), path)
    assert ET.fromstring(path.read_bytes()).tag.endswith("svg")


def test_nothing_measured_can_be_drawn_too(tmp_path):
    path = tmp_path / "empty.png"
    draw(result_of(Measurement()), path)
    assert path.stat().st_size > 0


@pytest.mark.parametrize("name", ["result.gif", "nowhere/result.png"])
def test_a_file_that_cannot_be_made_is_refused_before_the_run(tmp_path, name):
    with pytest.raises(SettingsError, match="--plot"):
        check_plot(tmp_path / name)


def test_a_missing_package_says_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(result, "import_module", missing)
    with pytest.raises(HoldfastError, match=r"pip install 'holdfast-streams\[bench\]'"):
        Latencies()
