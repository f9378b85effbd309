"""Which operations have no kernel for GPUs beside this library of kernels.

gpu_kernels.py FOLDER, which holds _ops.so and libgrace_cuda.so.  Prints the names as JSON.
"""

import json
import pathlib
import sys

from grace_tf.ops.backend import cuda, native

native.LIBRARY = pathlib.Path(sys.argv[1]) / native.LIBRARY.name
cuda.LIBRARY = native.LIBRARY.with_name(cuda.LIBRARY.name)
assert native.available(), native.why_not()
missing = [name for name in native.list_operations() if not cuda.has_kernel(name)]
print(json.dumps({"missing": missing, "build": cuda.built().build}))
