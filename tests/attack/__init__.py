"""Clients that try to take the server's memory and time from others; one attack runs at a time."""
