"""Access control: who sends a request, what it may do, and how often.

`gate.py` decides on each request. `scopes.py` says what a token allows, `tokens.py`
and `jwts.py` whose a token is, and `sources.py` where tokens and keys come from and how they are
renewed.
"""
