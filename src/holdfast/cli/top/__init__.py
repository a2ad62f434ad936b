"""`holdfast top`: a server's figures, live on a terminal or as JSON.

`source.py` asks the server, `measure.py` turns two samples into figures, `rows.py` puts them into
words, `screen.py` draws them, and `live.py` and `run.py` are the loops around that.
"""

from holdfast.cli.top.run import run_top

__all__ = ["run_top"]
