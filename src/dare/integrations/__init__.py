"""The curriculum in other people's trainers."""
