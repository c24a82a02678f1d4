"""The floor: pairs by counting them, work by adding it up, ceilings that are measured."""

import pytest
import torch

from scripts.benchmarks import floor as efficiency_floor


@pytest.mark.parametrize(("length", "window"), [(1, None), (7, None), (7, 3), (7, 7), (7, 100)])
def test_causal_pairs_are_counted(length, window):
    seen = torch.ones(length, length).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    assert efficiency_floor.causal_pairs(length, window) == int(seen.sum())


def test_work_of_one_pair_and_one_vector():
    # q . k and p * v: E multiplications and E additions each
    assert efficiency_floor.attention_operations(1, 8, backward=False) == 4 * 8
    assert efficiency_floor.attention_operations(1, 8) == 4 * 8 + 5 * 2 * 8
    assert efficiency_floor.attention_bytes(1, 8, torch.float32, backward=False) == 4 * 8 * 4
    assert efficiency_floor.attention_bytes(1, 8, torch.bfloat16) == (4 + 8) * 8 * 2


def test_floor_is_the_larger_of_two_times():
    ceilings = efficiency_floor.Ceilings(operations=100.0, bytes=10.0)
    assert ceilings.floor(200, 10) == 2.0
    assert ceilings.floor(200, 50) == 5.0
    many, few = (
        efficiency_floor.attention_floor(ceilings, pairs, 4, 8, torch.float32)
        for pairs in (1000, 1)
    )
    assert many == efficiency_floor.attention_operations(1000, 8) / 100
    assert few == efficiency_floor.attention_bytes(4, 8, torch.float32) / 10


def test_ceilings_are_what_the_fastest_run_reached(monkeypatch):
    clock = iter([0.0, 9.0, 0.0, 4.0, 0.0, 2.0] * 2)  # product, then copy: 9, 4 and 2 seconds
    monkeypatch.setattr(efficiency_floor.time, "perf_counter", lambda: next(clock))
    found = efficiency_floor.measure_ceilings(size=8, copy_bytes=64, repeats=2)
    assert found.operations == 2 * 8**3 / 2
    assert found.bytes == 2 * 64 / 2


def test_ceilings_of_this_machine():
    found = efficiency_floor.measure_ceilings(size=64, copy_bytes=2**16, repeats=1)
    assert found.operations > 1e6
    assert found.bytes > 1e6
