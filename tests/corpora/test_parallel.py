"""Work in several processes."""

import signal

import pytest

from fairseq_clusterformer.corpora.parallel import parallel


def ignores_interruptions(item):
    return item, signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_order_is_kept_and_interruptions_are_left_to_the_main_process():
    found = list(parallel(ignores_interruptions, range(50), 2, "items", batch=7))
    assert found == [(item, True) for item in range(50)]
    assert list(parallel(str, range(3), 1, "items")) == ["0", "1", "2"]
    with pytest.raises(ValueError, match="invalid literal"):
        list(parallel(int, ["1", "x"], 2, "items", batch=1))
