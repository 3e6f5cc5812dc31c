"""Everything that touches a model: generate, score, update."""
