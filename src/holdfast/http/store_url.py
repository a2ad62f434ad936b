"""Where jobs find the object store, and how they tell that it is the right one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit

from holdfast.storage.open_objects import store_place

if TYPE_CHECKING:
    from holdfast.http.app import App


def store_url(app: App) -> str:
    """The store as a URL, a directory as `file:///path`; empty if everything is in memory."""
    catalog = app.shard.catalog
    if catalog is None:
        return ""
    url = store_place(app.settings.storage, catalog.path.parent / "objects").url
    if url.startswith("file:"):
        path = Path(os.fsdecode(unquote_to_bytes(urlsplit(url).path)))
    elif "://" in url:
        return url
    else:
        path = Path(url).expanduser()
    return path.absolute().as_uri()


def store_id(app: App) -> str:
    """The id in the store's marker; empty if everything is in memory."""
    catalog = app.shard.catalog
    return "" if catalog is None else str(catalog.fact("store"))
