"""Self-contained HTML from run folders."""
