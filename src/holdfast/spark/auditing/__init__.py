"""Verifying packs against the catalog at scale: what the job `audit` is made of."""
