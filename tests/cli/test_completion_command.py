"""The completion scripts, in the shells that they are for."""

import shutil
import subprocess

import pytest

from tests.thorough import some_rows_of

COMPLETE = """
source script.bash
function_name=$(complete -p holdfast | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
$function_name holdfast "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    some_rows_of(
        [
            ("holdfast ap", {"append"}),
            ("holdfast bucket ch", {"changes"}),
            ("holdfast append demo1/a --prod", {"--producer"}),
            ("holdfast snapshot publish x --cont", {"--content-type", "--context"}),
            ("holdfast completion ''", {"bash", "zsh", "fish"}),
        ],
        1,
    ),
)
def test_bash_completes(command, words, expected):
    (command.home / "script.bash").write_text(command("completion", "bash"))
    done = command.shell(COMPLETE.format(words=words))
    assert done.stderr == ""
    assert expected <= set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_understands(command, shell):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"the completion script for {shell} was NOT checked: there is no {shell} here")
    path = command.home / f"script.{shell}"
    path.write_text(command("completion", shell))
    done = subprocess.run([program, "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "holdfast" in path.read_text()


def test_fish_completes(command):
    if shutil.which("fish") is None:
        pytest.skip("fish was NOT asked to complete anything: there is no fish here")
    (command.home / "script.fish").write_text(command("completion", "fish"))
    done = command.shell("""fish -N -c 'source script.fish; complete -C "holdfast bucket ch"'""")
    assert done.stdout.split()[0] == "changes", done.stderr
