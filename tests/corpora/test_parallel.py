"""Work in several processes, and what a run keeps of it."""

import pickle
import signal

import numpy as np
import pytest

from fairseq_clusterformer.corpora.parallel import parallel


def ignores_interruptions(item):
    return item, signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_order_is_kept_and_interruptions_are_left_to_the_main_process():
    found = list(parallel(ignores_interruptions, range(50), 2, "items", batch=7))
    assert found == [(item, True) for item in range(50)]
    assert list(parallel(str, range(3), 1, "items")) == ["0", "1", "2"]
    with pytest.raises(ValueError, match="invalid literal"):
        list(parallel(int, ["1", "x"], 2, "items"))


@pytest.mark.parametrize("function", [str, np.arange])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_kept_is_not_made_again(function, workers, tmp_path):
    how = {"batch": 2, "kept": tmp_path / "kept"}
    expected = [function(item) for item in range(5)]
    for use in (function, None):
        found = list(parallel(use, range(5), workers, "items", **how))
        assert all(map(np.array_equal, found, expected))
        assert len(found) == 5


class Planted:
    def __reduce__(self):
        return pytest.fail, ("code was run",)


def test_no_pickle_is_read(tmp_path):
    for name in ("0-2", "0-2.pickle"):
        (tmp_path / name).write_bytes(pickle.dumps([Planted()]))
    with pytest.raises(ValueError, match="JSON|utf-8|codec|Expecting"):
        list(parallel(str, range(2), 1, "items", batch=2, kept=tmp_path))
