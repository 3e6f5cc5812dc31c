"""The command `dare`, also as `python -m dare`: says so where it lacks a library."""

import os
import sys

if sys.path[0] in ("", os.getcwd()):
    sys.path.pop(0)  # what lies in the working folder must not stand in for a library

from dare.errors import absent


def main() -> None:
    """Run the command; a library that was not installed is one line and exit code 2."""
    try:
        from dare import cli

        cli.main()
    except ModuleNotFoundError as error:
        named = sys.argv[1:2] if "dare.cli" in sys.modules else []
        line = absent(error, f"`{' '.join(['dare', *named])}`")
        if line is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
