"""Behaves as ssh without a network: ssh.py [-o OPTION]… HOST WORDS…

A shell in another session and with a bare environment runs the words.  Host `x3.invalid` has the
address 127.0.0.3; `gone.invalid` cannot be reached, and `silent.invalid` never answers.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

words = sys.argv[1:]
while words[0] == "-o":
    words = words[2:]
host = words.pop(0).rpartition("@")[2]
if host == "gone.invalid":
    print(f"ssh: Could not resolve hostname {host}: Name or service not known", file=sys.stderr)
    sys.exit(255)
if host == "silent.invalid":
    signal.pause()
own = "127.0.0." + (re.findall(r"\d+", host) or ["1"])[-1]
environment = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/",
    "SSH_CONNECTION": f"127.0.0.1 40000 {own} 22",
    "STAND_IN": str(os.getpid()),
}
print("A shell may greet,\nand end no line: ", end="", flush=True)
far = subprocess.Popen(
    ["sh", "-c", " ".join(words)],
    stdin=subprocess.PIPE,
    cwd="/",
    env=environment,
    start_new_session=True,
)


def carry():
    """What comes in goes on, until this process ends in whatever way: then the far end sees it."""
    with contextlib.suppress(BrokenPipeError):
        while chunk := os.read(0, 1 << 16):
            os.write(far.stdin.fileno(), chunk)
    far.stdin.close()


threading.Thread(target=carry, daemon=True).start()
code = far.wait()
os._exit(code if code >= 0 else 255)
