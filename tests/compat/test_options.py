"""Options of fairseq's that work as they do in fairseq, or again."""

import pytest
import torch
from bitarray import bitarray
from fairseq import options
from fairseq.data.huffman.huffman_coder import HuffmanCodeBuilder
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_clusterformer.compat import checks, processes
from tests.cli.conftest import binarize
from tests.cli.in_process import (
    CLUSTERED_TRANSLATION,
    CLUSTERFORMER,
    DENSE_TRANSLATION,
    HERE,
    TRANSFORMER,
    generate,
    train,
    trained,
)
from tests.conftest import sampled

SHORT = "--disable-validation --no-epoch-checkpoints --max-update 1"
translator = trained("parallel_data", DENSE_TRANSLATION, *SHORT.split())


@pytest.mark.parametrize("impl", ["lazy", "cached"])
def test_data_of_older_forms(impl, parallel_text, tmp_path):
    """Without ``--dataset-impl``: the same as today's form."""
    runs = []
    for form in (impl, "mmap"):
        more = ("--joined-dictionary", "--dataset-impl", form)
        binarize(parallel_text, tmp_path / form, *more)
        runs.append(train(tmp_path / form, f"{DENSE_TRANSLATION} {SHORT}", tmp_path / f"{form}-s"))
    assert runs[0].mean_loss(0) == runs[1].mean_loss(0)


@pytest.mark.parametrize("line", [CLUSTERED_TRANSLATION, DENSE_TRANSLATION])
def test_buckets_of_lengths(line, parallel_data, tmp_path):
    """Padding changes no loss."""
    line = f"{line} {SHORT} --dropout 0 --max-tokens 100000"
    found = [
        train(parallel_data, f"{line} {more}", tmp_path / str(len(more))).mean_loss(0)
        for more in ("", "--num-batch-buckets 3")
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("line", [CLUSTERFORMER, TRANSFORMER])
def test_half_precision_that_saves_memory(line, byte_data, tmp_path):
    line += " --memory-efficient-fp16"
    checks.check_training(options_of(f"{byte_data} {line}"))
    run = train(byte_data, f"{line} {SHORT}", tmp_path)
    assert {p.dtype for p in run.model.parameters()} == {torch.float16}


def options_of(line: str):
    """What ``fairseq-train LINE`` reads."""
    args = options.parse_args_and_arch(options.get_training_parser(), line.split())
    return convert_namespace_to_omegaconf(args)


def test_groups_of_a_beam(parallel_data, translator, tmp_path):
    """A sentence's number in the data is no place in its batch: any batch gives the same."""
    line = "--task translation --gen-subset test --beam 4 --diverse-beam-groups 2 --batch-size"
    found = []
    for size in (1, 5):
        printed = generate(parallel_data, translator, f"{line} {size}", tmp_path)
        rows = [row.split("\t") for row in printed if row.startswith("H-")]
        found.append({name: text for name, _, text in rows})
    assert len(found[0]) == 24
    assert found[0] == found[1]


SIDES = "--encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-layers 1 --decoder-layers 1"
NAT = f"{SIDES} --criterion nat_loss --noise full_mask --pred-length-offset --apply-bert-init"
PAIRS = "--lang-pairs src-tgt,tgt-src --encoder-langtok src --decoder-langtok"
KERNELS = "--encoder-kernel-size-list [3] --decoder-kernel-size-list [3]"
LANGUAGES = "--source-lang src --target-lang tgt"
#: as in fairseq's own tests of its programs; the last two make the longest way
OF_FAIRSEQ = [
    f"translation --arch fconv {SIDES} --encoder-layers [(8,3)]*2 --decoder-layers [(8,3)]",
    f"translation --arch lightconv {SIDES} {KERNELS}",
    f"translation_lev --arch cmlm_transformer {NAT}",
    f"multilingual_translation --arch multilingual_transformer {SIDES} {PAIRS}",
    f"translation_multi_simple_epoch --arch transformer {SIDES} {PAIRS} --virtual-epoch-size 100",
]


@pytest.mark.parametrize("model", sampled(OF_FAIRSEQ, OF_FAIRSEQ[-2:]))
def test_models_of_fairseq_s_own(model, parallel_data, tmp_path):
    pairs = PAIRS if PAIRS in model else ""
    line = f"--task {model} --optimizer nag --lr 0.05 --max-tokens 500 {SHORT} {HERE}"
    train(parallel_data, line if pairs else f"{line} {LANGUAGES}", tmp_path)
    last, line = tmp_path / "checkpoint_last.pt", f"--task {model.split()[0]} {pairs} {LANGUAGES}"
    printed = generate(parallel_data, last, f"{line} --gen-subset test --beam 2", tmp_path)
    assert sum(row.startswith("H-") for row in printed) == 24


def test_names_that_libraries_have_dropped():
    builder = HuffmanCodeBuilder()
    builder.add_symbols(*"aab")
    coder = builder.build_code()
    assert [node.symbol for node in coder.decode(coder.encode(list("aba")))] == list("aba")
    assert coder._unpad(bitarray("0101000")) == bitarray("010")


@pytest.mark.parametrize("words", ["--help --task translation", "-h --arch nope"])
def test_help(words, capsys):
    """What fairseq lists is listed, whatever else the line has; without help it wants a model."""
    with pytest.raises(SystemExit) as ended:
        options_of(words)
    assert ended.value.code == 0
    assert "--max-epoch" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--arch is not given; allowed: a model, such as"):
        options_of("d --task translation")


@pytest.mark.parametrize("backend", ["c10d", "legacy_ddp"])
def test_what_shares_gradients_on_cpus_is_said(backend, caplog):
    line = f"d --arch clusterformer_lm --task language_modeling --cpu --ddp-backend {backend}"
    cfg = options_of(f"{line} --distributed-world-size 2")
    with caplog.at_level("INFO"):
        processes._join(cfg)
    assert cfg.distributed_training.ddp_backend == "legacy_ddp"
    said = f"--ddp-backend {backend} wants GPUs: legacy_ddp instead"
    assert (said in caplog.text) == (backend != "legacy_ddp")
