"""Is it right? Mathematical answers (`math`), programs (`code`), and killable workers (`pool`)."""
