"""Subscriptions: durable cursors that wake workers when streams have something new for them."""
