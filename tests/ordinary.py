"""An ordinary user for programs that are to run without rights."""

import os

# One of this process's own: the kernel counts all processes of a user together, so the fork bombs
# of other tests beside these would leave it none.
UID = 40_000 + os.getpid() % 20_000
