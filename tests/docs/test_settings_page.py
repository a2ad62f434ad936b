"""docs/settings.md is what the settings say."""

from pathlib import Path

from holdfast.cli.option_pages import settings_page
from holdfast.settings import all_settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "run `make docs`"


def test_every_setting_is_on_it():
    page = PAGE.read_text(encoding="utf-8")
    assert [item.flag for item in all_settings() if f"`{item.flag}`" not in page] == []


def test_every_setting_is_explained():
    assert [item.name for item in all_settings() if not item.help.endswith(".")] == []
