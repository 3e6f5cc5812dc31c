"""The half of the sandbox that runs beside the program. Standard library only; sent, not imported.

The source of these modules is sent to a bare interpreter, which knows nothing else of DARE.
"""
