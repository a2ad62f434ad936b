"""`holdfast top`: a server's figures, live on a terminal or as JSON.

`command.py` has the flags, `run.py` requests samples, `measure.py` turns two of them into figures,
`rows.py` formats these as text, `screen.py` draws them, and `live.py` is the view on a terminal.
"""

from holdfast.cli.top.run import run_top

__all__ = ["run_top"]
