"""Run many seeds on all processors, or show one: `make sim SEEDS=5000`, `make sim SEED=17`."""

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.run import Failure, run_seed

CHUNK = 10
# How often progress is told where it cannot be told in place.
LINES = 20


def run_chunk(seeds):
    """What was seen in all of these seeds, and the failures: (seed, message)."""
    seen, failures = Counter(), []
    for seed in seeds:
        try:
            seen.update(run_seed(seed)[0])
        except Failure as failure:
            failures.append((seed, str(failure)))
    return seen, failures


class Progress:
    """One line that is written over, or a few where that is not possible."""

    def __init__(self, count):
        self._count = count
        self._done = 0
        self._is_terminal = sys.stdout.isatty()
        self.failed = []

    def advance(self, done, failures):
        before, self._done = self._done, self._done + done
        for seed, message in failures:
            self.failed.append(seed)
            print(f"\n{message}\n", flush=True)
        line = f"{self._done:,} of {self._count:,} seeds, {len(self.failed)} failed"
        if self._is_terminal:
            print(f"\r{line}", end="\n" if self._done == self._count else "", flush=True)
        elif before * LINES // self._count != self._done * LINES // self._count:
            print(line, flush=True)


def run_many(first, count):
    """Run seeds, tell how far it is, what was seen and which failed; the exit status."""
    last = first + count
    chunks = [range(start, min(start + CHUNK, last)) for start in range(first, last, CHUNK)]
    seen, progress = Counter(), Progress(count)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = {pool.submit(run_chunk, chunk): chunk for chunk in chunks}
        for future in as_completed(futures):
            more_seen, failures = future.result()
            seen.update(more_seen)
            progress.advance(len(futures[future]), failures)
    for what, times in sorted(seen.items()):
        print(f"{times:11,} {what}")
    failed = sorted(progress.failed)
    if failed:
        print(f"{len(failed)} of {count} seeds failed: {' '.join(map(str, failed))}")
        print("See one with: make sim SEED=<seed>")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one and show all that happens")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--digests", action="store_true", help="print what tells runs apart")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        _, digest = run_seed(arguments.seed, is_shown=True)
        print(f"seed {arguments.seed} is fine: {digest}")
    elif arguments.digests:
        for seed in seeds:
            print(run_seed(seed)[1])
    else:
        return run_many(arguments.first, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
