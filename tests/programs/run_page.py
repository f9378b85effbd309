"""run_page.py FILE   runs blocks of Python of a page of the documentation, one after another.

The file holds them as a list in JSON.  They run in one script, as a reader puts them there: what no
block defines (`model`, `x`, `loss` and so on) is made when it is first used, and so after
`grace_tf.init()` where a block calls it.
"""

import json
import os
import sys

MAKES = {
    "grace_tf": "__import__('grace_tf')",
    "keras": "__import__('keras')",
    "np": "__import__('numpy')",
    "tf": "__import__('tensorflow')",
    "x": "np.random.default_rng(0).normal(size=(128, 40)).astype('float32')",
    "y": "x[:, :1]",
    "build": "lambda: keras.Sequential([keras.layers.Input([40]), keras.layers.Dense(40),"
    " keras.layers.Dense(1)])",
    "model": "build()",
    "loss": "keras.losses.MeanSquaredError()",
    "optimizer": "keras.optimizers.SGD(0.1)",
}


class Names(dict):
    """The names of a reader's script."""

    def __missing__(self, name):
        if name not in MAKES:
            raise KeyError(name)
        self[name] = eval(MAKES[name], self)
        return self[name]


def main(file):
    os.chdir(os.path.dirname(file))
    with open(file, encoding="utf-8") as opened:
        blocks = json.load(opened)
    names = Names(__name__="__main__")
    if "grace_tf.init(" not in "".join(blocks):
        names["grace_tf"].init()
    for number, code in enumerate(blocks):
        exec(compile(code, f"block {number}", "exec"), names)
    print(json.dumps({"ran": len(blocks)}))


main(*sys.argv[1:])
