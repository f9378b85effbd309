"""The matrix of docs/engines.md: every feature under every engine works, or is refused before.

One program trains all cells of an engine (programs/cells.py); its run is shared by all tests.
"""

import pytest
from cell_checks import MATRIX_OF, answer
from cell_runs import CELLS, ENGINES, HAS_HOROVOD, cells_of
from doc_tables import matrix


def all_cells():
    for engine in ENGINES:
        lacks = engine.startswith("Horovod") and not HAS_HOROVOD
        reason = "Horovod is not installed here; `make horovod` builds it."
        marks = [pytest.mark.skipif(lacks, reason=reason)]
        for cell in cells_of(engine):
            yield pytest.param(engine, cell, marks=marks, id=f"{engine}-{cell}".replace(" ", ""))


@pytest.mark.slow  # the first of an engine runs all its cells
@pytest.mark.rotated("engine")
@pytest.mark.parametrize("engine, cell", list(all_cells()))
def test_a_cell(engine, cell):
    assert answer(engine, cell) == matrix()[MATRIX_OF, engine, cell]


def test_the_matrix_has_all_cells():
    wanted = {(engine, cell) for engine in ENGINES for cell in cells_of(engine)}
    for version in ("2.21", "2.15"):
        assert {(engine, cell) for of, engine, cell in matrix() if of == version} == wanted
    assert set(CELLS) == {cell for _, cell in wanted}
