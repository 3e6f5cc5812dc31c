"""The subcommands of `dare`, one a file."""
