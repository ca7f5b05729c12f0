"""What the scripts have in common as commands: how they end, how they say what went wrong and what to install."""

from __future__ import annotations

import os
import sys
from typing import Callable, NoReturn, Optional

UNREAD = 128 + 13  # as a shell says it of a program that SIGPIPE has ended
OF_TORCH = "torch --index-url https://download.pytorch.org/whl/cpu"


class InputError(Exception):
    """What a user can mend."""


def run_script(main: Callable[[list[str]], Optional[int]]) -> NoReturn:
    """Exits with what main returns, or silently where nobody reads the output any more (`| head`).

    Python ignores SIGPIPE; with the exception in its place, blocks are left in order: a sweep tells its runs to save.
    """
    try:
        try:
            code = main(sys.argv[1:])
        finally:
            sys.stdout.flush()  # also after --help
    except BrokenPipeError:
        code = UNREAD
        nowhere = os.open(os.devnull, os.O_WRONLY)  # for what the interpreter still writes at its end
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
    sys.exit(code)


def reason(error: Exception) -> str:
    """What went wrong, without the path, which the message names already."""
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def refuse(script: str, error: Exception) -> int:
    """Says what could not be done and returns the exit code; a closed pipe is left to `run_script`."""
    if isinstance(error, BrokenPipeError):
        raise error
    path = f"{error.filename}: " if isinstance(error, OSError) and error.filename is not None else ""
    print(f"{script}: {path}{reason(error)}", file=sys.stderr)
    return 2


def how_to_install(pip: str, debian: str = "", script: str = "") -> str:
    """Lines for a shell: from pip, with how to call the script then, and from Debian where it has the packages."""
    lines = [f"  python3 -m venv .venv && .venv/bin/pip install {pip}"]
    if script:
        lines.append(f"  .venv/bin/python scripts/{script} ...")
    if debian:
        lines.append(f"  sudo apt-get install {debian}")
    return "\n".join([*lines, "(venv itself, on a fresh Debian: sudo apt-get install python3-venv)"])


FOR_FIGURES = how_to_install("numpy scipy matplotlib", "python3-numpy python3-scipy python3-matplotlib")
