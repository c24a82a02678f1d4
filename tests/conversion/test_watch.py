"""A conversion keeps within its memory, and does nothing in vain."""

import resource

import pytest
import torch

from fairseq_clusterformer.conversion import fit, watch
from fairseq_clusterformer.conversion.reading import read, store
from fairseq_clusterformer.errors import UserError
from tests.hf.small import language_model, tokens


def test_memory_that_runs_out_is_one_line():
    message = r"memory ran out; .* GB are free; allowed: a smaller model"
    with pytest.raises(UserError, match=message), watch.memory_may_run_out():
        raise RuntimeError("[enforce fail] can't allocate memory: you tried")


def test_limits_of_a_shell_and_of_a_container_count(tmp_path, monkeypatch):
    """Also of the group that a group is in; what files take can be given back."""
    whole = watch.free_memory()
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (1 << 20, -1))
    assert watch.free_memory() == 0 < whole  # less than the program has already
    group = tmp_path / "outer" / "inner"
    group.mkdir(parents=True)
    for folder, most, used in ((group, "max", 70), (group.parent, 100, 80)):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 30\n")
    assert list(watch._limits(tmp_path, group.relative_to(tmp_path))) == [50]
    (group / "memory.limit_in_bytes").write_text("90\n")  # of version 1
    (group / "memory.usage_in_bytes").write_text("70\n")
    assert list(watch._limits(tmp_path, group.relative_to(tmp_path))) == [50, 50]


def test_only_what_layers_read_is_computed(tmp_path):
    """No logits; and regressions share one factor of the channels' products."""
    model, calls = language_model(attention="full").model, []
    inputs = {"src_tokens": tokens(2, 9)}
    model.decoder.output_projection.register_forward_hook(lambda *_: calls.append(1))
    (file,) = store(model, [inputs], tmp_path, lambda steps, name: iter(steps))
    assert not calls
    last = "decoder", len(model.decoder.layers) - 1
    torch.testing.assert_close(
        *(read(model, each)(last).x for each in (inputs, file)), atol=1e-2, rtol=1e-2
    )
    x, wanted = torch.randn(50, 6).double(), torch.randn(50, 2).double()
    solved = torch.cholesky_solve(x.t() @ wanted, fit._factor(x))
    least = torch.linalg.lstsq(x, wanted).solution
    torch.testing.assert_close(solved, least, atol=1e-3, rtol=1e-3)
