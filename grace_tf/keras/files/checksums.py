"""Checksums of a backup's files: written once the backup is whole, compared before it is loaded.

They lie in one file beside those that they cover, in the format of the command `sha256sum`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import tensorflow as tf

_PIECE = 1 << 20  # bytes that are read at once


def write(path: str, names: Iterable[str]) -> None:
    """Writes to `path` the checksums of the files of these names in its folder.

    A kill leaves all of them or none, since a part would make a whole backup look damaged.
    """
    lines = [f"{checksum}  {name}\n" for name, checksum in _made(path, names).items()]
    draft = os.path.join(os.path.dirname(path), "draft")
    with tf.io.gfile.GFile(draft, "w") as file:
        file.write("".join(lines))
    tf.io.gfile.rename(draft, path, overwrite=True)


def damage(path: str, names: Iterable[str]) -> str:
    """Says what is wrong with these files, of whose checksums `path` is the file; "" for nothing.

    A file that has no checksum counts as damaged, since the file of checksums itself may be cut.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            lines = file.read().decode(errors="replace").splitlines()
        made = _made(path, names)
    except tf.errors.OpError as error:
        return f"it cannot be read, {error.message}"
    written = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    odd = [name for name, checksum in made.items() if checksum != written.get(name)]
    if odd:
        return f"the checksum of {', '.join(odd)} does not hold"
    return "a file is missing" if len(written) > len(made) else ""


def _made(path: str, names: Iterable[str]) -> dict[str, str]:
    folder = os.path.dirname(path)
    return {name: _sha256(os.path.join(folder, name)) for name in sorted(names)}


def _sha256(path: str) -> str:
    told = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while piece := file.read(_PIECE):
            told.update(piece)
    return told.hexdigest()
