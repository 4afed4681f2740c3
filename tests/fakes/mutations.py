"""Random changes of a result folder, drawn by hypothesis: what an accident or a forger may do to its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

HOSTILE = ("", "cpu:0", "mixed", "\ud800", "../../x", "=1+1", "\x1b[31m", "a" * 5000, "wall", "int4", "official", "0")
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.sampled_from(HOSTILE),
    st.sampled_from(([], {}, [[]], {"x": 1})),
)
BYTES = (b"[" * 3000, b'"', b"1" * 5000, b"\\ud800", b"\xed\xa0\x80", b"e999", b"-", b"\n", b"(1e9,)", b"\xff", b"")
DTYPES = ("<i8", "<f8", "<f4", "<i4", "|b1", "<U4", ">i8", "|S3", "<c16", "<f2", "|u1")


def alter_json(data: st.DataObject, path: Path) -> None:
    """Replaces, scales, removes, renames or repeats a value of a JSON file."""
    content = json.loads(path.read_text("utf-8"))
    parent, name = data.draw(st.sampled_from(list(_values(content))))
    value = parent[name]
    how = data.draw(st.sampled_from(("replace", "scale", "remove", "rename", "repeat")))
    if how == "scale" and isinstance(value, int | float) and not isinstance(value, bool):
        parent[name] = type(value)(value * data.draw(st.sampled_from((0.5, 0.999, 1.001, 2, -1))))
    elif how == "remove":
        del parent[name]
    elif how == "rename" and isinstance(parent, dict):
        parent[data.draw(st.sampled_from([*parent, "x", "\ud800"]))] = parent.pop(name)
    elif how == "repeat" and isinstance(parent, list):
        parent.append(value)
    else:
        parent[name] = data.draw(VALUES)
    path.write_text(json.dumps(content))


def _values(content: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key or index) of each value in parsed JSON."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in items:
        yield content, name
        yield from _values(value)


def alter_bytes(data: st.DataObject, path: Path) -> None:
    """Replaces a span of a file's bytes with others, or cuts the file off."""
    content = path.read_bytes()
    begin = data.draw(st.integers(0, len(content)))
    length = data.draw(st.sampled_from((0, 1, 4, 100, len(content))))
    path.write_bytes(content[:begin] + data.draw(st.sampled_from(BYTES)) + content[begin + length :])


def alter_array(data: st.DataObject, path: Path) -> None:
    """Changes an array of a raw file, or its name."""
    with np.load(path) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    name = data.draw(st.sampled_from(sorted(arrays)))
    changes = ("type", "shape", "halve", "double", "scale", "replace", "remove", "rename", "add")
    how = data.draw(st.sampled_from(changes))
    try:
        if how == "type":
            arrays[name] = arrays[name].astype(data.draw(st.sampled_from(DTYPES)))
        elif how == "shape":
            arrays[name] = arrays[name].reshape(data.draw(st.sampled_from(((1, *arrays[name].shape), (-1, 1), ()))))
        elif how == "halve":
            arrays[name] = arrays[name][: len(arrays[name]) // 2]
        elif how == "double":
            arrays[name] = np.concatenate((arrays[name], arrays[name]))
        elif how == "scale":
            scaled = arrays[name] * data.draw(st.sampled_from((0.5, 0.999, 1.001, -1.0)))
            arrays[name] = scaled.astype(arrays[name].dtype)
        elif how == "remove":
            del arrays[name]
        elif how == "rename":
            arrays[data.draw(st.sampled_from(("x", "key", "../x", "é", "x" * 300)))] = arrays.pop(name)
        elif how == "add":
            arrays["more"] = np.zeros(3)
        else:
            arrays[name] = np.array(data.draw(st.sampled_from((5, "x", [], [np.nan, np.nan]))))
    except (ValueError, TypeError, IndexError):  # the change does not fit the array
        arrays[name] = np.zeros(3)
    np.savez(path, **arrays)


def alter_files(data: st.DataObject, folder: Path) -> None:
    """Removes, swaps, empties or links a whole file, or puts a folder in its place."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    first, second = data.draw(st.sampled_from(paths)), data.draw(st.sampled_from(paths))
    how = data.draw(st.sampled_from(("remove", "copy", "empty", "link", "device", "loop", "folder", "add")))
    if how == "add":
        shutil.copy(first, first.with_name("more" + first.name))
    elif how == "copy":
        first.write_bytes(second.read_bytes())
    else:
        first.unlink()
        if how == "empty":
            first.write_bytes(b"")
        elif how == "folder":
            first.mkdir()
        elif how in ("link", "device", "loop"):
            first.symlink_to({"link": second, "device": Path("/dev/zero"), "loop": first}[how])
