"""LAMB against its equations (You et al. 2020, algorithm 2), and by fairseq's command."""

import math

import torch

from fairseq_clusterformer.etc.lamb import Lamb
from tests.cli.in_process import train
from tests.cli.topics import LINE


def test_its_equations_by_loops():
    """Three updates of two tensors, one of which begins as zeros."""
    rate, (b1, b2), eps, decay = 0.1, (0.8, 0.9), 1e-3, 0.05
    tensors = [torch.tensor([1.0, -2.0, 2.0]), torch.zeros(2)]
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
    optimizer = Lamb(parameters, rate, (b1, b2), eps, decay)
    expected = [tensor.tolist() for tensor in tensors]
    means = [[0.0] * len(x) for x in expected]
    squares = [[0.0] * len(x) for x in expected]
    for step in range(1, 4):
        for number, x in enumerate(expected):
            gradient = [math.sin(step + 3 * i + number) for i in range(len(x))]
            parameters[number].grad = torch.tensor(gradient)
            m = means[number] = [
                b1 * m + (1 - b1) * g for m, g in zip(means[number], gradient, strict=True)
            ]
            v = squares[number] = [
                b2 * v + (1 - b2) * g * g for v, g in zip(squares[number], gradient, strict=True)
            ]
            update = [
                m[i] / (1 - b1**step) / (math.sqrt(v[i] / (1 - b2**step)) + eps) + decay * x[i]
                for i in range(len(x))
            ]
            norms = math.hypot(*x), math.hypot(*update)
            trust = norms[0] / norms[1] if norms[0] else 1.0
            expected[number] = [w - rate * trust * u for w, u in zip(x, update, strict=True)]
        optimizer.step()
        for found, right in zip(parameters, expected, strict=True):
            torch.testing.assert_close(found.tolist(), right, rtol=1e-5, atol=1e-6)


def test_a_training(sentences, tmp_path):
    more = "--lamb-betas (0.8,0.9) --weight-decay 0.01"
    line = LINE.replace("--optimizer adam", "--optimizer clusterformer_lamb")
    run = train(sentences, f"{line} {more} --max-update 12 --disable-validation", tmp_path)
    assert run.mean_loss(-1) < run.mean_loss(0)
