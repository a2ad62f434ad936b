"""The OpenAPI 3.1 document of everything that this server answers, one file for each family.

The files hold plain dictionaries: what they say is checked against the running server by
`tests/http/test_openapi.py`, and against the tree of routes by `tests/unit/http/test_openapi.py`.
"""
