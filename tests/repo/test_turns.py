"""Families of which every commit tests a part, in turn."""

import conftest
import pytest
import turns


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 17, 100])
def test_each_turn_runs_a_fair_part_of_a_family_and_eight_turns_run_all(size):
    family = {f"test_one[{i}]" for i in range(size)}
    parts = [turns.chosen(family, turn) for turn in range(turns.COUNT)]
    assert set.union(*parts) == family
    least = max(1, size // turns.COUNT)
    assert all(least <= len(part) <= -(-size // turns.COUNT) for part in parts)
    assert turns.chosen(family, turns.COUNT + 3) == parts[3]


def test_what_runs_together_is_mixed():
    corners = ("odd", "many", "large", "matrices")
    family = [f"{spec}-{corner}" for spec in range(40) for corner in corners]
    for turn in range(turns.COUNT):
        part = turns.chosen(family, turn)
        assert {member.partition("-")[2] for member in part} == set(corners)


def test_a_family_is_a_function_with_parameters_or_a_file():
    class Item:
        def __init__(self, nodeid, **params):
            self.nodeid = nodeid
            if params:
                self.callspec = type("Spec", (), {"params": params})

    def member(item, *arguments):
        return conftest._member(item, type("Mark", (), {"args": arguments}))

    cell = Item("keras/test_cells.py::test_a_cell[alone-fit]", engine="alone", cell="fit")
    assert member(cell, "engine") == ("test_cells.py::test_a_cell", "alone")
    assert member(cell) == ("test_cells.py::test_a_cell", "test_cells.py::test_a_cell[alone-fit]")
    method = Item("tests/ops/test_ops.py::OpsTest::test_ties")
    assert member(method) == ("test_ops.py", "test_ops.py::OpsTest::test_ties")
