"""Rewriting packs at scale: what the job `compact` is made of."""
