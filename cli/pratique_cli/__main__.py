"""``pratique``, ``kubectl pratique`` and ``python -m pratique_cli``: parse, run one command, end with its code."""

import sys
import traceback
from pathlib import Path

from pratique_cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, CliError, missing_extra
from pratique_cli.printing import drop_output, outlive_the_reader, plain


def main() -> None:
    """Console entry point. Whatever happens, the code is one of ``errors``: a crash must not look like an answer."""
    outlive_the_reader()
    try:
        code = _run()
        _flush()
    except OSError as error:
        what = f"{error.filename} cannot be used" if error.filename else "The output cannot be written"  # a full disk
        code = _fail(f"{plain(str(what))}: {error.strerror or error}")
        drop_output()
    sys.exit(code)


def _flush() -> None:
    if sys.stdout is not None:  # None: started with its output closed
        sys.stdout.flush()


def _run() -> int:
    try:
        from pratique_cli.app import app
    except ModuleNotFoundError as error:
        failed = missing_extra("cli", error)
        return _fail(str(failed), code=failed.code)

    # kubectl finds the plug-in by its file's name; what the person typed has a space.
    name = "kubectl pratique" if Path(sys.argv[0]).name == "kubectl-pratique" else "pratique"
    try:
        app(prog_name=name)
    except CliError as error:
        return _fail(plain(str(error)), code=error.code)
    except SystemExit as ended:
        if _was_interrupted(ended):
            return EXIT_INTERRUPTED
        return ended.code if isinstance(ended.code, int) else EXIT_OK
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - with 1, Python's own code, a script would take it for the answer no
        traceback.print_exc()
        return _fail(f"Unexpected {type(error).__name__}: {plain(str(error))}; this is a bug of ours")
    return EXIT_OK


def _fail(message: str, *, code: int = EXIT_FAILED) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether a Ctrl-C is behind it: the library makes its own exception of it, and of that an exit with 1."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
