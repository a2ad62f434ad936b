"""Start a server, let the shop write to it, and run the pipeline over it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
WORK = HERE / "work"
# Beside the Python that runs this, as in a virtual environment, or wherever there is one.
HOLDFAST = shutil.which("holdfast", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@contextmanager
def server() -> Iterator[str]:
    """The URL of the server that HOLDFAST_URL names, or of one of our own."""
    if url := os.environ.get("HOLDFAST_URL"):
        yield url
        return
    data = WORK / "data"
    if not data.exists():
        # So that the page has some days to show.
        subprocess.run([sys.executable, str(HERE / "shop.py"), str(data)], check=True)
    command = [HOLDFAST, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data)]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                sys.exit("The server did not start.")
            yield json.loads(line)["url"]
        finally:
            process.terminate()


def main() -> int:
    """Run all steps; returns the exit code of the first that fails."""
    if HOLDFAST is None:
        sys.exit("There is no command 'holdfast' here: pip install 'holdfast-streams[spark]'.")
    WORK.mkdir(exist_ok=True)
    with server() as url:
        env = os.environ | {"HOLDFAST_URL": url}
        steps = [
            [sys.executable, str(HERE / "shop.py")],
            [HOLDFAST, "pipeline", "run", str(HERE / "pipeline.toml")],
        ]
        for step in steps:
            if code := subprocess.run(step, env=env, check=False).returncode:
                return code
    print(f"Look at {WORK / 'report.html'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
