"""`python -m dare` is the command `dare`."""

import os
import sys

if sys.path[0] in ("", os.getcwd()):
    sys.path.pop(0)  # what lies in the working folder must not stand in for a library

from dare.cli import main

if __name__ == "__main__":
    main()
