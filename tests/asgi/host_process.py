"""A program that embeds Holdfast, in a process of its own."""

import json
import sys
from pathlib import Path

from tests.asgi.hosts import PREFIX
from tests.server_process import ServerProcess

HOSTS = Path(__file__).with_name("hosts.py")


class HostProcess(ServerProcess):
    """One host from `hosts.py`; settings are Holdfast's, options are the ASGI server's."""

    def __init__(
        self,
        data_dir: Path,
        *,
        server: str = "uvicorn",
        app: str = "root",
        options: dict[str, object] | None = None,
        **settings: object,
    ) -> None:
        super().__init__(data_dir)
        settings = {"data_dir": str(data_dir), "long_poll_timeout": 0.5, **settings}
        text = json.dumps({"settings": settings, "options": options or {}})
        self._arguments = [sys.executable, str(HOSTS), server, app, text]
        self._prefix = "" if app == "root" else PREFIX

    @property
    def streams_root(self) -> str:
        """Where Holdfast's own paths start."""
        return self.url + self._prefix
