"""Runs side by side: what the quickstart and the studies share."""
