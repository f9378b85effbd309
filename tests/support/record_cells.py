"""Runs and checks every cell of the matrix and records the answers of this TensorFlow.

record_cells.py FOLDER; an engine that has run is not run again in the same folder.  Then renew the
docs by doc_tables.py.  Engines that are not installed keep the answers that they have.
"""

import json
import pathlib
import sys

import launch
import replicas  # noqa: F401  (four virtual CPUs)
import tensorflow as tf
from cell_checks import MATRIX_OF, answer
from cell_runs import ENGINES, HAS_HOROVOD, cells_of
from doc_tables import MATRIX, matrix


def main(folder):
    if not tf.__version__.startswith(MATRIX_OF):
        sys.exit(
            f"TensorFlow {tf.__version__} with this Keras must have the answers of {MATRIX_OF}, "
            f"which is checked by tests/keras/test_cells.py; record them with {MATRIX_OF}."
        )
    launch.SHARED = pathlib.Path(folder)
    launch.SHARED.mkdir(exist_ok=True)
    answers = matrix() if MATRIX.exists() else {}
    for engine in ENGINES:
        if engine.startswith("Horovod") and not HAS_HOROVOD:
            continue
        for cell in cells_of(engine):
            answers[MATRIX_OF, engine, cell] = answer(engine, cell)
    names = "tensorflow", "engine", "cell", "answer"
    lines = [json.dumps(dict(zip(names, (*key, said)))) for key, said in answers.items()]
    MATRIX.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
