"""Starts the program `kvant` from the package's folder bin/, for the commands `kvant ...` and `python -m kvant ...`."""

from __future__ import annotations

import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).resolve().parent / "bin" / "kvant"


def main() -> None:
    """Replaces this process by the program, with the arguments of this process."""
    try:
        os.execv(PROGRAM, ["kvant", *sys.argv[1:]])
    except OSError as failure:
        sys.exit(f"kvant: the program is not in this installation ({PROGRAM}: {failure.strerror}): `pip install .` in kvant's "
                 "source tree builds it (docs/guide/python.md)")


if __name__ == "__main__":
    main()
