"""``pratique``, ``kubectl pratique`` and ``python -m pratique_cli``: parse, run one command, end with its code."""

import os
import sys
from pathlib import Path

from pratique_cli.errors import EXIT_OK, CliError, missing_extra
from pratique_cli.printing import plain


def main() -> None:
    """Console entry point."""
    try:
        from pratique_cli.app import app
    except ModuleNotFoundError as error:
        failed = missing_extra("cli", error)
        print(f"error: {failed}", file=sys.stderr)
        sys.exit(failed.code)

    # kubectl finds the plug-in by its file's name; what the person typed has a space.
    name = "kubectl pratique" if Path(sys.argv[0]).name == "kubectl-pratique" else "pratique"
    try:
        app(prog_name=name)
    except CliError as error:
        print(f"error: {plain(str(error))}", file=sys.stderr)
        sys.exit(error.code)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; the interpreter must not complain while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_OK)


if __name__ == "__main__":
    main()
