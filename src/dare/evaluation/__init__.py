"""Evaluation on benchmarks: problems, answers, scores, figures, and files one can browse."""
