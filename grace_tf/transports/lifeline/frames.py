"""What workers say to each other over their own connections: one JSON value a line.

A stranger may send anything to a port.  So a line has a longest length and a greatest depth, which
are checked before it is parsed, and what is no such line is refused by one exception.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from typing import Any

LONGEST = 1 << 20  # bytes of a line: the addresses of some ten thousand workers
DEEPEST = 16  # lists and objects inside each other; the parser would recurse into every one

# A string without an end matches too: what fails to match would be searched again and again.
_TOKENS = re.compile(rb'"(?:[^"\\]+|\\.)*"?|[\[\]{}]', re.DOTALL)
_SHOWN = 40  # bytes of an answer that an error message quotes


def encode(value: Any) -> bytes:
    """The line that says this, with its end."""
    return json.dumps(value).encode() + b"\n"


def decode(line: bytes) -> Any:
    """What a line says; ValueError where it is no line of a worker."""
    if len(line) > LONGEST or _too_deep(line):
        raise ValueError("longer or deeper than any line of a worker")
    return json.loads(line.decode())


def signed(words: dict[str, Any], secret: str, challenge: str) -> dict[str, Any]:
    """The words, with a proof that who says them knows the secret; it answers this challenge."""
    return {**words, "proof": _proof(words, secret, challenge)}


def proved(words: dict[str, Any], secret: str, challenge: str) -> bool:
    """Whether `signed` has made these words."""
    said = {name: value for name, value in words.items() if name != "proof"}
    given = str(words.get("proof")).encode(errors="replace")  # it may hold half a character
    return hmac.compare_digest(given, _proof(said, secret, challenge).encode())


def _proof(words: dict[str, Any], secret: str, challenge: str) -> str:
    text = json.dumps([challenge, words], sort_keys=True)
    key = secret.encode(errors="surrogatepass")  # a variable may hold bytes that are no text
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _too_deep(line: bytes) -> bool:
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return False  # as in nearly every line
    depth = 0
    for token in _TOKENS.finditer(line):
        if token[0] in (b"[", b"{"):
            depth += 1
        elif token[0] in (b"]", b"}"):
            depth -= 1
        if depth > DEEPEST:
            return True
    return False


def shown(answer: bytes) -> str:
    """Foreign bytes as an error message can show them: "'SSH-2.0-OpenSSH_9.2'"."""
    text = answer.splitlines()[0][:_SHOWN].decode("ascii", errors="replace") if answer else ""
    if text and text.isascii() and text.isprintable():
        return repr(text)
    return f"{len(answer)} bytes that are no text"
