"""Runs another program of this folder after hvd.init(): under_horovod.py PROGRAM ARGUMENTS…"""

import pathlib
import runpy
import sys

import horovod.tensorflow as hvd

hvd.init()
program = pathlib.Path(__file__).parent / sys.argv[1]
sys.argv = [str(program), *sys.argv[2:]]
sys.path.insert(0, str(program.parent))
runpy.run_path(str(program), run_name="__main__")
