"""The program `dnformer`, also `python -m dnformer`; Ctrl-C while it loads is one line, too."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line on the process's own arguments."""
    try:
        from dnformer.cli import main as run

        run()
    except KeyboardInterrupt:
        print("error: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
