"""Decoding near the hardware: paged keys and values, slots that are refilled, one captured step.

`weights` reads a model's layers, `kernels` (Triton) and `plain` (torch) are the operations of a
step, `step` puts them in order, `pages` hands out the cache, `engine` keeps the slots busy.
"""
