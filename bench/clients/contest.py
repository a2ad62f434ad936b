"""Has clients do the same work in turn, each in its own process, and puts them side by side."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench import tools
from bench.clients.work import READY, Values
from bench.process import stop
from bench.scenario import Plan, wait_for_quiet
from bench.storage.figures import Figure

ROOT = tools.BENCH_DIR.parent
WORK_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Client:
    """One contestant: its title, its Python, its module, and the event loop that it runs on."""

    title: str
    python: str
    module: str
    loop: str = "asyncio"

    def command(self, work: str, arguments: dict[str, object]) -> list[str]:
        module = f"bench.clients.{self.module}"
        return [self.python, "-m", module, self.loop, work, json.dumps(arguments)]


OURS = Client("ours", sys.executable, "ours")
OURS_UVLOOP = Client("ours on uvloop", sys.executable, "ours", "uvloop")
PUBLISHED = "PyPI's"

Samples = dict[str, list[Values]]


def contestants(plan: Plan) -> list[Client]:
    """Whoever can run here."""
    found = [OURS, OURS_UVLOOP]
    try:
        return [*found, Client(PUBLISHED, tools.published_python(), "published")]
    except tools.MissingError as error:
        plan.console.print(f"[yellow]{PUBLISHED} is left out: {error}[/yellow]", highlight=False)
        return found


def take_turns(
    plan: Plan, clients: list[Client], what: str, measure: Callable[[Client, str], Values]
) -> Samples:
    """Measure every client once per round; `measure` also gets a name that was never used."""
    samples: Samples = defaultdict(list)
    for number in range(plan.rounds):
        turn = number % len(clients)
        for client in clients[turn:] + clients[:turn]:
            wait_for_quiet(plan.patience_s)
            values = measure(client, f"{client.module}-{client.loop}-{number}")
            samples[client.title].append(values)
            shown = ", ".join(f"{name} {value:,.6g}" for name, value in values.items())
            label = f"{what}, round {number + 1}/{plan.rounds}, {client.title}"
            plan.console.print(f"    {label}: {shown}", highlight=False)
    return samples


def figures(
    what: str,
    samples: Samples,
    metric: str,
    form: str = "{:,.0f}",
    *,
    at_least: float | None = None,
    less_is_better: bool = False,
    with_ratio: bool = True,
) -> list[Figure]:
    """The medians of all clients, and ours over the published one's, so that more is better."""
    medians = {
        title: statistics.median(values[metric] for values in found)
        for title, found in samples.items()
    }
    found = [
        Figure(f"{what}: {title}", value, form, at_least=at_least if title == OURS.title else None)
        for title, value in medians.items()
    ]
    if PUBLISHED not in medians or not with_ratio:
        return found
    ratio = medians[OURS.title] / medians[PUBLISHED]
    shown = 1 / ratio if less_is_better else ratio
    against = f"{PUBLISHED} / ours" if less_is_better else f"ours / {PUBLISHED}"
    return [*found, Figure(f"{what}: {against}", shown, "{:.2f}")]


def work(client: Client, how: str, /, **arguments: object) -> Values:
    """Have a client do one work in a new process, and say what it measured."""
    with working(client, how, **arguments) as process:
        return _finished(process)


@contextmanager
def working(client: Client, how: str, /, **arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The same, for work during which something else has to be done."""
    process = subprocess.Popen(
        client.command(how, arguments),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            stop(process)


def work_once_ready(
    client: Client, how: str, then: Callable[[], None], /, **arguments: object
) -> Values:
    """Wait until the work is prepared before something else is done, and then for its end."""
    with working(client, how, **arguments) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != READY:
            _finished(process)
            raise RuntimeError(f"{client.title}: {how} was never ready")
        then()
        return _finished(process)


def _finished(process: subprocess.Popen[str]) -> Values:
    printed, failure = process.communicate(timeout=WORK_TIMEOUT_S)
    if process.returncode != 0:
        raise RuntimeError((failure.strip() or "a client's process failed").splitlines()[-1])
    values: Values = json.loads(printed)
    return values
