"""`advise` as one of several workers, with the arguments of the command."""

import sys

from grace_tf.__main__ import main

raise SystemExit(main(["advise", *sys.argv[1:]]))
