"""The run folder: one writer, one finder, one reader; what a run leaves behind."""
