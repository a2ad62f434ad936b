"""Access control: who asks, what they may do, and how often.

`gate.py` decides on each request; `opening.py` builds a gate from settings. The other modules are
its parts: `scopes.py` (what a token allows), `authentication.py`, `tokens.py` and `jwts.py` (whose
it is), `jwks.py` (the keys of JWTs), `sources.py`, `watched_file.py` and `fetched_keys.py` (where
tokens and keys come from, and how they are renewed), `rate_limits.py`.
"""
