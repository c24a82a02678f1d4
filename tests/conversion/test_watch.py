"""A conversion says how far it is, keeps within its memory, and does nothing in vain."""

import resource
import time

import pytest
import torch

from fairseq_clusterformer.conversion import fit, watch
from fairseq_clusterformer.conversion.reading import read, store
from fairseq_clusterformer.conversion.watch import Watch, free_memory
from fairseq_clusterformer.errors import UserError
from tests.hf.small import language_model, tokens


def test_lines_where_there_is_no_terminal(capsys):
    with Watch(every=0.05).told() as steps:
        for _ in steps(range(3), "read"):
            time.sleep(0.08)
        time.sleep(0.12)
        steps.at("measure")
        time.sleep(0.12)
    lines = capsys.readouterr().err.splitlines()
    assert "read: 1 of 3 batches, 0 s" in lines
    assert {"read: done, 0 s", "measure: 0 s"} <= set(lines)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] can't allocate memory: you tried")]
)
def test_memory_that_runs_out_is_one_line(error):
    def run_out(of: Exception) -> None:
        with Watch().told() as steps:
            steps.at("fit")
            raise of

    with pytest.raises(UserError, match=r"memory ran out \(fit\); .* GB are free; allowed: a sm"):
        run_out(error)
    with pytest.raises(RuntimeError, match="shapes"):
        run_out(RuntimeError("shapes"))


def test_the_limit_of_a_shell_counts(monkeypatch):
    sizes = {resource.RLIMIT_AS: 1 << 40, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (sizes[limit], -1))
    whole = free_memory()
    sizes[resource.RLIMIT_AS] = 1 << 20  # less than the program has already
    assert free_memory() == 0 < whole


def test_the_limit_of_a_container_counts(tmp_path):
    """Also of the group that a group is in; what files take can be given back."""
    group = tmp_path / "outer" / "inner"
    group.mkdir(parents=True)
    for folder, most, used in ((group, "max", 70), (group.parent, 100, 80)):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 30\n")
    assert list(watch._limits(tmp_path, group.relative_to(tmp_path))) == [50]
    for name in ("max", "current", "stat"):
        (group.parent / f"memory.{name}").unlink()
    (group / "memory.limit_in_bytes").write_text("90")
    (group / "memory.usage_in_bytes").write_text("70")
    (group / "memory.stat").write_text("cache 1")
    assert list(watch._limits(tmp_path, group.relative_to(tmp_path))) == [20]


def test_only_what_layers_read_is_computed(tmp_path):
    """No logits; and regressions share one factor of the channels' products."""
    model, calls = language_model(attention="full").model, []
    inputs = {"src_tokens": tokens(2, 9)}
    model.decoder.output_projection.register_forward_hook(lambda *_: calls.append(1))
    (file,) = store(model, [inputs], tmp_path, lambda steps, name: iter(steps))
    assert not calls
    layers = len(model.decoder.layers)
    found = [read(model, each)["decoder", layers - 1].x for each in (inputs, file)]
    torch.testing.assert_close(*found, atol=1e-2, rtol=1e-2)
    x, wanted = torch.randn(50, 6).double(), torch.randn(50, 2).double()
    least = torch.linalg.lstsq(x, wanted).solution
    solved = torch.cholesky_solve(x.t() @ wanted, fit._factor(x))
    torch.testing.assert_close(solved, least, atol=1e-3, rtol=1e-3)
