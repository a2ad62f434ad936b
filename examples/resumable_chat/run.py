"""Start a Holdfast server with its proxy on, a language model, and the application's own server.

These may be set, as environment variables:

- `PORT`: where the page is; 8437 unless it says otherwise
- `MODEL_URL`, `MODEL_NAME`, `MODEL_KEY`: a real model, with OpenAI's chat completions
- `HOLDFAST_URL`, `HOLDFAST_PROXY_SECRET`: a Holdfast server that runs already
- `HOLDFAST_DATA_DIR`: where a server of our own keeps its data; `work/data` beside this file
- `URL_TTL_S`: how long a signed URL is good; the page gets a new one when it needs it
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backend import Backend, Model, Proxy
from fake_llm import PATH, fake_llm
from serving import serving

HERE = Path(__file__).parent
DATA = HERE / "work" / "data"
PORT = 8437
# Beside the Python that runs this, as in a virtual environment, or wherever there is one.
HOLDFAST = shutil.which("holdfast", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@contextmanager
def model() -> Iterator[Model]:
    """The model that the environment names, or the fake one."""
    if url := os.environ.get("MODEL_URL"):
        yield Model(url, os.environ.get("MODEL_NAME", "fake"), os.environ.get("MODEL_KEY", "none"))
        return
    fake = fake_llm()
    with serving(fake):
        yield Model(fake.url + PATH)


@contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """The proxy that the environment names, or a new one that may call only this upstream."""
    ttl_s = int(os.environ.get("URL_TTL_S", "600"))
    if url := os.environ.get("HOLDFAST_URL"):
        yield Proxy(url, os.environ["HOLDFAST_PROXY_SECRET"], ttl_s)
        return
    if HOLDFAST is None:
        sys.exit("There is no command 'holdfast' here: pip install holdfast-streams.")
    # Signed URLs do not outlive the secret, but streams do: the page connects to its own again.
    secret = secrets.token_urlsafe(32)
    env = os.environ | {"HOLDFAST_PROXY_SECRET": secret, "HOLDFAST_PROXY_ALLOWLIST": upstream}
    data = os.environ.get("HOLDFAST_DATA_DIR", DATA)
    command = [HOLDFAST, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data), "--json"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                sys.exit("The server did not start.")
            yield Proxy(json.loads(line)["url"], secret, ttl_s)
        finally:
            process.terminate()


def main() -> None:
    """Run until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    port = int(os.environ.get("PORT", PORT))
    with suppress(KeyboardInterrupt), model() as asked, proxy(asked.url) as opened:
        backend = Backend(port, opened, asked)
        with serving(backend):
            print(f"Open {backend.url}/ and ask something. Ctrl-C ends it.", flush=True)
            signal.pause()


if __name__ == "__main__":
    main()
