"""What happened in a run, as lines; two runs of one seed have the same."""

from hashlib import sha256

import msgspec


def shown(value):
    if isinstance(value, bytes):
        digest = sha256(value).hexdigest()[:8]
        return f"{len(value)}B:{digest}" if len(value) > 20 else repr(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}({value})"
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        given = [f"{name}={shown(each)}" for name, each in fields if each not in (None, False, b"")]
        return f"{type(value).__name__}({', '.join(given)})"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(shown, value)) + ")"
    return str(value)


class Trace:
    def __init__(self, clock, directory, *, is_shown=False):
        self._clock = clock
        # Its name is another one in every run.
        self._directory = str(directory)
        self._hash = sha256()
        self._is_shown = is_shown
        self.lines = []

    def __call__(self, *what):
        line = f"{self._clock.monotonic_s():12.6f} " + " ".join(map(shown, what))
        line = line.replace(self._directory, "")
        self._hash.update(line.encode() + b"\n")
        self.lines.append(line)
        if self._is_shown:
            print(line, flush=True)

    @property
    def digest(self):
        return self._hash.hexdigest()
