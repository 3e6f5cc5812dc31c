"""`python -m dare` is the command `dare`."""

from dare.cli import main

if __name__ == "__main__":
    main()
