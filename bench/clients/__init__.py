"""Our client beside the one on PyPI: the same work, against the same server, in turn."""
