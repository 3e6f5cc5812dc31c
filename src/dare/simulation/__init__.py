"""Policies without a model, for examples and checks: every probability of `tabular` is known."""
