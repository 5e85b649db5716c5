"""The entry point of the command `tenure`, outside the package: Ctrl-C while `tenure` is imported ends it quietly.

Importing takes a few tenths of a second. A module inside the package could not catch an interrupt there, because Python
imports `tenure` first.
"""

import sys


def main() -> None:
    try:
        from tenure.cli.main import main as run

        run()
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")  # after the ^C
        sys.exit(130)
