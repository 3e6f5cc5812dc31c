"""The DOTS teacher before a run: pass rates to learn from, and a head fitted to them."""
