"""The lines of a result as SQL for SQLite. The names of the columns hold the units; unknown is NULL.

Pipe the output into sqlite3 to collect several results in one database. A result that is inserted again replaces
itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.judgement import Judgement
from mixmark.reporters.lines import Value, columns, lines

TABLE = "mixmark"
TYPES = {str: "TEXT", int: "INTEGER", float: "REAL"}


def report(judgement: Judgement) -> str:
    return "\n".join(_statements(judgement)) + "\n"


def _statements(judgement: Judgement) -> Iterator[str]:
    names = ", ".join(f'"{name}"' for name in columns())
    declared = ",\n".join(f'  "{name}" {TYPES[kind]}' for name, kind in columns().items())
    yield "BEGIN;"
    yield f'CREATE TABLE IF NOT EXISTS {TABLE} (\n{declared},\n  PRIMARY KEY ("result_id", "key")\n);'
    for line in lines(judgement):
        yield f"INSERT OR REPLACE INTO {TABLE} ({names}) VALUES ({', '.join(map(_literal, line.values()))});"
    yield "COMMIT;"


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + plain(value).replace("'", "''") + "'"
    return repr(value)
