"""Data: rows from files, the hub or Python, in one schema, cleaned and counted."""

from dare.data.inspect import inspect
from dare.data.load import read_rows
from dare.data.prepare import prepare
from dare.data.schema import to_row, training_rows
from dare.data.spec import load_spec

__all__ = ["inspect", "load_spec", "prepare", "read_rows", "to_row", "training_rows"]
