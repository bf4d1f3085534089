"""Writes results of benchmarks to a file, one JSON object per line, as decode_bench does."""

import json


class RowWriter:
    def __init__(self, path):
        self._path = path

    def write(self, **row):
        """Adds a row, if there is a file."""
        if self._path is None:
            return
        with open(self._path, "a") as file:
            file.write(json.dumps({name: round(x, 2) if isinstance(x, float) else x for name, x in row.items()}) + "\n")
