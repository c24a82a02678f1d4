"""The kernel in C++: what the tests of every kernel do not reach, and how it is built."""

import logging
import multiprocessing
import os
import platform
import resource
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from fairseq_clusterformer import kernels
from fairseq_clusterformer.kernels import Layout, ranged_attention
from fairseq_clusterformer.kernels.cpu import library

from .layouts import WIDTH, make_inputs, run


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random_layout(
    batch: int, heads: int, length: int, slots: int, reach: int, **changes
) -> Layout:
    """Ranges anywhere, a fifth of them empty; tokens in several key slots or in none."""
    lo = torch.randint(slots, (batch, heads, length))
    size = torch.randint(1, reach + 1, lo.shape).masked_fill(torch.rand(lo.shape) < 0.2, -3)
    order = torch.rand(batch, heads, length).argsort(-1)
    key_order = torch.randint(length, (batch, heads, slots))
    if slots == length:
        key_order = torch.rand(batch, heads, length).argsort(-1)
    hi = (lo + size).clamp(max=slots)
    return replace(Layout(lo, hi, query_order=order, key_order=key_order), **changes)


def made(length: int, dtype=torch.float64, **sizes) -> tuple[torch.Tensor, ...]:
    return make_inputs(length, dtype, **sizes)[:3]


SLOT = torch.arange(900).view(1, 1, -1)


def three_windows() -> Layout:
    lo = torch.arange(150).view(1, 1, -1) // 50 * 50
    return Layout(lo=lo, hi=lo + 50, num_queries=torch.tensor([[100]]))


CASES = {
    "anywhere": lambda: random_layout(2, 3, 150, 150, 20),
    "repeated keys": lambda: random_layout(2, 3, 150, 200, 20),
    "missing keys": lambda: random_layout(2, 1, 150, 90, 20),
    "unused slots": lambda: random_layout(
        *(2, 3, 150, 200, 20),
        num_queries=torch.randint(150, (2, 3)),
        num_keys=torch.randint(200, (2, 3)),
    ),
    "several chunks of keys": lambda: random_layout(1, 1, 150, 900, 900),
    "unused queries in identity order": three_windows,
    # in one task, over more keys than stay copied
    "a wide window": lambda: Layout((SLOT - 400).clamp(min=0), SLOT + 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("bias_heads", "width"), [(0, WIDTH), (1, WIDTH), (3, 40)])
def test_every_layout(name, bias_heads, width):
    """Neither width fills its registers."""
    layout = CASES[name]()
    length = layout.lo.size(-1)
    inputs = made(length, batch=2, heads=3, width=width)
    bias = torch.randn(2, bias_heads, length, dtype=torch.float64) if bias_heads else None
    expected = run("reference", *inputs, bias, layout)
    for got, want in zip(run("cpu", *inputs, bias, layout), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_a_nan_of_one_row_is_in_no_gradient_of_the_next():
    q, k, v = made(129, torch.float32, batch=2, heads=1)
    k[0, 0, -1] = float("nan")
    slot = torch.arange(129).view(1, 1, -1)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out, _ = ranged_attention(*leaves, Layout((slot - 20).clamp(min=0), slot + 1), impl="cpu")
    gradients = torch.autograd.grad(out[1].sum(), leaves)
    assert all(t[1].isfinite().all() for t in gradients)


def grown_by_backward(queue) -> None:
    queries, keys = 1024, 16384
    q, k, v = (torch.ones(1, 1, queries, 64, requires_grad=True) for _ in range(3))
    lo = torch.zeros(1, 1, queries, dtype=torch.long)
    layout = Layout(lo, lo + keys, key_order=torch.arange(keys).view(1, 1, -1) % queries)
    loss = ranged_attention(q, k, v, layout, impl="cpu")[0].sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loss.backward()
    queue.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_memory_of_the_gradients_of_many_keys():
    """Those of 16,384 keys are 8 MB, and 16 segments of queries add to them."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=grown_by_backward, args=(queue,))
    process.start()
    process.join(60)
    assert queue.get() < 40


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_threads_changes_no_bit(name):
    layout = CASES[name]()
    inputs = made(layout.lo.size(-1), torch.float32, batch=2, heads=3)
    bias = torch.randn(2, 3, layout.lo.size(-1))
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        found.append(run("cpu", *inputs, bias, layout, dropout=0.3))
    for others in zip(*found, strict=True):
        assert all(torch.equal(others[0], other) for other in others[1:])


def test_a_nan_stays_visible():
    """A loss scaler finds it so."""
    inputs = made(20, torch.float32, batch=1, heads=1)
    inputs[0][0, 0, 3, 0] = float("nan")
    slot = torch.arange(20).view(1, 1, 20)
    out, _ = ranged_attention(*inputs, Layout(lo=slot, hi=slot + 1), impl="cpu")
    assert torch.equal(out.isnan().all(-1).nonzero(), torch.tensor([[0, 0, 3]]))


def test_dropout_draws_each_weight_alone():
    """With equal logits and unit vectors as values the output is the mask."""
    rate, batch, heads = 0.3, 300, 2
    zeros = torch.zeros(batch, heads, WIDTH, WIDTH)
    values = torch.eye(WIDTH).expand_as(zeros)
    lo = torch.zeros(1, 1, WIDTH, dtype=torch.long)
    out, _ = ranged_attention(
        zeros, zeros, values, Layout(lo=lo, hi=lo + WIDTH), dropout=rate, impl="cpu"
    )
    kept = out * WIDTH * (1 - rate)
    torch.testing.assert_close(kept, kept.round())
    kept = (kept.round() - (1 - rate)) / (rate * (1 - rate)) ** 0.5  # mean 0, variance 1
    far = 4 / kept.numel() ** 0.5  # standard errors
    assert abs(kept.mean()) < far
    for dim in range(4):  # neighbours in rows, heads, queries, keys
        assert abs((kept * kept.roll(1, dim)).mean()) < 1.5 * far
    again, _ = ranged_attention(
        zeros, zeros, values, Layout(lo=lo, hi=lo + WIDTH), dropout=rate, impl="cpu"
    )
    assert not torch.equal(again, out)


def attend() -> torch.Tensor:
    q, k, v = (torch.ones(2, 4, 300, WIDTH) for _ in range(3))
    slot = torch.arange(300).view(1, 1, -1)
    return ranged_attention(q, k, v, Layout(lo=slot, hi=slot + 1), impl="cpu")[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_threads_that_it_has_not():
    torch.set_num_threads(2)
    attend()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=attend)
    process.start()
    process.join(60)
    alive = process.is_alive()
    process.kill()
    assert not alive
    assert process.exitcode == 0


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Nothing is built yet."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(library, "_LOADED", {})
    kernels.attend._warn.cache_clear()
    yield tmp_path
    kernels.attend._warn.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("no-such-compiler", "no compiler no-such-compiler"),
        ("false", "status 1"),
        ("g++ '", "No closing quotation"),
    ],
)
def test_without_a_compiler(elsewhere, monkeypatch, caplog, compiler, reason):
    monkeypatch.setenv("CXX", compiler)
    inputs = made(20, torch.float32, batch=1, heads=1)
    layout = random_layout(1, 1, 20, 20, 5)
    with pytest.raises(ValueError, match=f"kernel is cpu.*{reason}; allowed: blocks, reference"):
        ranged_attention(*inputs, layout, impl="cpu")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            out, _ = ranged_attention(*inputs, layout, impl="auto")
    assert torch.equal(out, ranged_attention(*inputs, layout, impl="blocks")[0])
    (record,) = caplog.records
    assert "blocks takes its place" in record.message
    assert reason in record.message


def test_built_once_by_all_who_ask_at_once(elsewhere, monkeypatch):
    """By a compiler that takes its time, and notes that it was called."""
    compiler = elsewhere / "compiler"
    compiler.write_text(
        '#!/bin/sh\necho called >> "$0.log"\nwhile [ "$1" != -o ]; do shift; done\n'
        'printf half > "$2"; sleep 0.5; printf whole > "$2"\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    with ThreadPoolExecutor(4) as pool:
        built = [pool.submit(library.build, torch.float32, WIDTH) for _ in range(4)]
        assert {b.result().read_text() for b in built} == {"whole"}
    assert (elsewhere / "compiler.log").read_text() == "called\n"
    # another width is another library
    assert library.build(torch.float32, WIDTH + 1) != built[0].result()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize("number", ["float", "double"])
@pytest.mark.parametrize("processor", ["x86-64", "haswell", "skylake-avx512"])
def test_every_source_compiles_for_every_processor(processor, number):
    """Not only for this one: a branch may be for registers of another width."""
    sources = sorted(library.FOLDER.glob("*.cpp"))
    assert len(sources) == 6
    words = [os.environ.get("CXX", "c++"), "-std=c++17", "-fopenmp", f"-march={processor}"]
    words += ["-fsyntax-only", f"-DNUMBER={number}", "-DWIDTH=64"]
    subprocess.run([*words, *sources], check=True)


def test_a_library_is_of_its_compiler_and_libc(elsewhere, monkeypatch):
    """A quick one makes them; what is there needs none, and knows its own struct."""
    made = shutil.copy(library.build(torch.float32, WIDTH), elsewhere / "made")
    compiler = elsewhere / "copying"
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp "{made}" "$2"\n')
    compiler.chmod(0o755)
    built = [library.build(torch.float32, WIDTH)]
    monkeypatch.setenv("CXX", f"env {compiler}")  # as "ccache g++"
    built.append(library.build(torch.float32, WIDTH))
    monkeypatch.setattr(library.platform, "libc_ver", lambda: ("glibc", "9.9"))
    built.append(library.build(torch.float32, WIDTH))
    assert len(set(built)) == 3
    compiler.unlink()
    assert attend().eq(1).all()


@pytest.mark.parametrize("whose", ["everybody's", "another's"])
def test_a_folder_that_others_may_write_to_is_refused(elsewhere, monkeypatch, whose):
    elsewhere.chmod(0o777)
    folder = library._own_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if whose == "another's":
        user = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: user)
        folder = elsewhere / f"fairseq_clusterformer-{user}"
        folder.mkdir(mode=0o700)
    else:
        folder.chmod(0o777)
    with pytest.raises(ValueError, match=f"the kernel is cpu.*others may write to {folder}; all"):
        attend()


def test_another_device_is_refused():
    q = torch.zeros(1, 1, 4, WIDTH, device="meta")
    lo = torch.zeros(1, 1, 4, dtype=torch.long, device="meta")
    with pytest.raises(ValueError, match="the kernel is cpu, and q is on meta"):
        ranged_attention(q, q, q, Layout(lo=lo, hi=lo + 1), impl="cpu")
