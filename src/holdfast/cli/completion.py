"""`holdfast completion`: scripts that complete commands and flags in a shell."""

import json as json_module
from typing import Annotated, Literal

from cyclopts import Parameter

__all__ = ["completion"]


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish.")],
    /,
    *,
    json: Annotated[bool, Parameter(negative="", help="Print one JSON document.")] = False,
) -> int:
    """Print a shell's completion script.

    bash: holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
    zsh: holdfast completion zsh > a directory of $fpath, as _holdfast
    fish: holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    from holdfast.cli.main import app  # noqa: PLC0415 (it is made from this module, too)

    script = app.generate_completion(prog_name="holdfast", shell=shell)
    print(json_module.dumps({"shell": shell, "script": script}) if json else script)
    return 0
