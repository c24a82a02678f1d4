"""Every command of the pages and of the configurations' comments runs, in order, at tiny size."""

import contextlib
import glob
import importlib
import io
import json
import re
import runpy
import shlex
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import yaml
from fairseq import checkpoint_utils
from fairseq.dataclass.initialize import hydra_init
from fairseq_cli import hydra_train
from hydra import compose, initialize_config_dir

from fairseq_clusterformer.data.subwords import Subwords
from tests.cli.in_process import QUESTIONS as READER
from tests.cli.towns import squad
from tests.conftest import sampled
from tests.conversion.dense import llama
from tests.data.tokenizers import made
from tests.documents.commands import run
from tests.mnist import write_mnist
from tests.pages import CONFIGURATIONS, PAGES, ROOT, commands, in_the_checkout, parse

#: how the commands begin that cannot run here, and why; test_docs.py parses these, too
NOT_RUN = {
    "git|cd|pip|export|echo|. ": "of the reader's shell",
    "bash scripts/": "set-up, demo and tests themselves",
    "clusterformer prepare lm (enwik8|wikitext103)": "downloads its corpus",
    "clusterformer prepare translation (multi30k|iwslt14|wmt14)": "downloads its corpus",
    "python examples/etc/openkp": "of others' files; the tests in that folder",
    "python examples/question_answering": "the same, and RoBERTa's; the tests in that folder",
    "clusterformer answer .* --serve": "ends when it is stopped; tests/documents",
    "python -m scripts.(experiments.run|benchmarks)": "takes hours; tests/experiments",
    "python -m examples.(question_answering|language_model|efficiency)": "the same",
    "clusterformer prepare qa text raw/distance": "of what the line before makes",
    "torchrun .*--config-name hotpotqa": "asks for supporting sentences; test_etc_reader.py",
    "torchrun .*--config-name quasar_t": "starts from RoBERTa's weights; cli/test_roberta.py",
}
#: the least that shows that a recipe works
TINY = {
    **{"--max-update": 2, "--total-num-update": 2, "--warmup-updates": 1, "--update-freq": 1},
    **{"--tokens-per-sample": 64, "--max-valid-steps": 1, "--save-interval-updates": 1},
    **{"--validate-interval-updates": 1, "--validate-after-updates": 0, "--max-blocks": 1},
    **{"--max-tokens": 200, "--num-clusters": 8, "--sentencepiece": 300, "--workers": 1},
    **{"--max-epoch": 1, "--eval-bleu-args": '{"beam": 1, "max_len_a": 0, "max_len_b": 5}'},
    **{"--beam": 2, "--max-len-b": 5},
}
TINY_CONFIGURATION = {
    **{"max_update": "2", "update_freq": "[1]", "total_num_update": "2", "warmup_updates": "1"},
    **{"tokens_per_sample": "64", "max_parts": "16", "min_sentences": "1", "num_workers": "0"},
    **{"validate_interval_updates": "1", "validate_after_updates": "0", "bf16": "false"},
    **{"save_interval_updates": "1"},
    **{"lift": "''", "radius": "4", "max_tokens": "200"},
    **{"encoder_ffn_embed_dim": "8", "decoder_ffn_embed_dim": "8", "batch_size": "2"},
    **{"eval_bleu_args": """'{"beam": 1, "max_len_a": 0, "max_len_b": 5}'"""},
    **{"max_epoch": "1", "fp16": "false", "num_clusters": "8", "num_labels": "64"},
    **{"adaptive_input_cutoff": "'60,120'", "adaptive_softmax_cutoff": "'60,120'"},
}
PROGRAMS = {
    "fairseq-" + name.replace("_", "-"): name
    for name in "train eval_lm validate generate interactive".split()
}


def reason(words: list[str]) -> str | None:
    """Why a command is not run."""
    line = shlex.join(words)
    return next((why for begin, why in NOT_RUN.items() if re.match(begin, line)), None)


def write_inputs(folder: Path) -> None:
    """What the pages take for given, as little of it as is enough."""
    sentence = "the cat sees a dog near the old mill and runs away from it at once . "
    lines = [sentence[i % 40 :] + str(i) for i in range(200)]
    scored = ["score\tsentence1\tsentence2"]
    scored += [f"{i % 6}\t{line}\t{line[::-1]}" for i, line in enumerate(lines)]
    story = "1 Ada moved to the mill.\n2 Bob went to the town.\n3 Where is {}?\t{}\t{}"
    told = [story.format(*found) for found in (("Ada", "mill", 1), ("Bob", "town", 2)) * 20]
    asked, files = [], {}
    for name, seed in (("train", 1), ("dev", 2)):
        articles = [squad(8, seed + i)["data"][0] | {"title": str(i)} for i in range(8)]
        for paragraph in (
            paragraph for article in articles for paragraph in article["paragraphs"]
        ):
            paragraph["qas"] = [one for one in paragraph["qas"] if one["answers"]]
            for one in paragraph["qas"]:
                answers = [answer["text"] for answer in one["answers"]]
                record = {"question": one["question"], "context": paragraph["context"]}
                asked.append(json.dumps({**record, "answers": answers}))
        files[f"DIR/{name}-v1.1.json"] = [json.dumps({"data": articles})]
    files |= dict.fromkeys(("my-texts/a.txt", "my-texts/b.txt", "SOURCE/a.txt"), lines)
    files |= dict.fromkeys(("README.md", "notes.txt", "held-out.txt"), lines[:20])
    files |= dict.fromkeys(("questions.jsonl", "my-questions/train.jsonl"), asked)
    files |= dict.fromkeys(("DIR/STS-B/train.tsv", "DIR/STS-B/dev.tsv"), scored)
    files |= dict.fromkeys(("qa1_train.txt", "qa1_test.txt"), told)
    files |= {
        "vectors.txt": [word + 100 * f" {i}" for i, word in enumerate(sentence.split())],
        "TEXT/books.txt": [f"{line}. {line}.\nLINE" for line in lines],
        "letters/one.txt": ["Ada Lovelace signed the treaty."],
        "pairs.tsv": [f"{line}\t{line[::-1]}" for line in lines[:60]],
        "reviews.tsv": [
            f"{'good' if i % 2 else 'bad'}\t{line}" for i, line in enumerate(lines[:80])
        ],
        "DIR/rt-polarity.all": [f"{sign} {line}" for sign in "01" for line in lines[:60]],
    }
    for name, rows in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(rows) + "\n")
    write_mnist(folder / "mnist")


def write_encoder(folder: Path) -> None:
    """A folder of BERT's form, with MiniLM's layers and heads and the widths of :func:`tiny`."""
    from transformers import BertConfig, BertModel

    folder.mkdir()
    made("wordpiece", folder / "tokenizer.json")
    sizes = {"hidden_size": 48, "intermediate_size": 8, "num_attention_heads": 12}
    words = len(Subwords(folder / "tokenizer.json").symbols)
    BertModel(BertConfig(vocab_size=words, num_hidden_layers=6, **sizes)).save_pretrained(folder)


def write_checkpoint(path: Path, data: str, line: str) -> None:
    saved = Path("checkpoints", path.stem)
    execute(["fairseq-train", data, *line.split(), "--save-dir", str(saved)])
    shutil.copy(saved / "checkpoint_last.pt", path)


DENSE = "--task language_modeling --arch transformer_lm --decoder-layers 2 --optimizer adam"
DENSE += " --decoder-attention-heads 4 --tokens-per-sample=256 --batch-size 8"
#: what the pages take for given, and what makes it where a command names it
MODELS = {
    "MINILM": write_encoder,
    "a-llama": llama,
    "dense.pt": partial(write_checkpoint, data="data-bin/my-texts", line=DENSE),
    "my-reader.pt": partial(write_checkpoint, data="data-bin/squad", line=READER),
}
QUESTIONS = "prepare qa text questions.jsonl {} --sentencepiece 300"
LABELS = "prepare classification text reviews.tsv {}"
PAIRS = "prepare translation text {} --train pairs.tsv --source-lang {} --target-lang {}"
#: what commands that are not run would have made, by its path: the command that makes it
MADE = {
    "data-bin/my-texts": "prepare lm text my-texts {}",
    "data-bin/enwik8": "prepare lm text my-texts {}",
    "data-bin/wikitext103": "prepare lm text my-texts {} --words",
    "data-bin/multi30k": PAIRS.format("{}", "en", "de"),
    "data-bin/iwslt14": PAIRS.format("{}", "de", "en"),
    "data-bin/wmt14-en-de": PAIRS.format("{}", "en", "de"),
    "data-bin/20news": LABELS,
    "data-bin/mr": "python examples/classification/prepare.py mr data-bin --source DIR",
    "data-bin/hotpotqa": QUESTIONS,
    "data-bin/nq": QUESTIONS,
    "data-bin/wikihop": QUESTIONS,
    "data-bin/quasar-t": QUESTIONS,
    "data-bin/squad": QUESTIONS,
}


def make_what_is_missing(words: list[str]) -> None:
    """Inputs that an earlier command, which is not run here, would have made."""
    for word in words:
        name = next((name for name in MADE if word == name or word.startswith(f"{name}/")), None)
        if name and not Path(name).exists() and words[1] != "prepare":
            made = MADE[name].format(name).split()
            execute(made if made[0] == "python" else ["clusterformer", *made])


def tiny(words: list[str]) -> list[str]:
    """A command with the least of everything; what it asks for besides is as it was."""
    words = list(words)
    for i, word in enumerate(words[:-1]):
        if word in TINY and not words[i + 1].startswith("--"):
            words[i + 1] = str(TINY[word])
    if words[:2] == ["clusterformer", "generate"]:
        words += ["--max-tokens", "20"]
    if words[:2] == ["clusterformer", "convert"]:
        words += ["--updates", "2", "--tokens", "500", "--near-window", "8"]
    if words[0] == "fairseq-train":
        words = [word for word in words if word != "--fp16"]  # needs a GPU
        words += [] if "--max-epoch" in words else ["--max-update", "2"]
        words += "--cpu --num-workers 0 --distributed-world-size 1".split()
        words += "--log-format none --required-batch-size-multiple 1".split()
        args = vars(parse(words))
        for side in ("encoder", "decoder"):
            if f"{side}_attention_heads" in args and not args.get("word_vectors"):
                heads = args[f"{side}_attention_heads"] or 8
                words += [f"--{side}-embed-dim", str(4 * heads), f"--{side}-ffn-embed-dim", "8"]
    elif words[0] in PROGRAMS:
        words += ["--cpu", "--num-workers", "0"]
    return words


def fairseq(words: list[str]) -> None:
    """One of fairseq's programs, in this process."""
    words = in_the_checkout(words)
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # of an earlier one in this process
    if words[0] == "fairseq-hydra-train":
        name = words[words.index("--config-name") + 1]
        hydra_init(name)
        config = ROOT / words[words.index("--config-dir") + 1] / f"{name}.yaml"
        given = [word for word in words[1:] if re.match(r"\+?\w+\.\w+=", word)]
        make_what_is_missing(["", "", yaml.safe_load(config.read_text())["task"]["data"]])
        with initialize_config_dir(str(config.parent), version_base="1.1"):
            hydra_train._hydra_main(compose(name, [*given, *tiny_overrides(config)]))
    else:
        program = importlib.import_module(f"fairseq_cli.{PROGRAMS[words[0]]}")
        with mock.patch("sys.argv", words):
            program.cli_main()


def tiny_overrides(config: Path) -> list[str]:
    """As :func:`tiny`, of a configuration."""
    sections = yaml.safe_load(config.read_text())
    model, values = sections["model"], dict(TINY_CONFIGURATION)
    for side in ("encoder", "decoder"):
        for width in ("embed", "input", "output"):
            values[f"{side}_{width}_dim"] = 4 * model.get(f"{side}_attention_heads", 0)
    return [
        f"{section}.{option}={values[option]}"
        for section in sections
        for option in sections[section]
        if option in values
    ] + ["common.cpu=true", "distributed_training.distributed_world_size=1"]


def as_the_shell(words: list[str]) -> list[str]:
    """With the files that a pattern, or a range such as {56..60}, stands for."""
    words = [re.sub(r"\{\d+\.\.\d+\}", "*", word) for word in words]
    return [path for word in words for path in (glob.glob(word) if "*" in word else []) or [word]]


def execute(words: list[str]) -> None:
    words = words[words.index("--no-python") + 1 :] if words[0] == "torchrun" else words
    words = as_the_shell(words)
    make_what_is_missing(words)
    for name, write in MODELS.items():
        if any(word.startswith(name) for word in words) and not Path(name).exists():
            write(Path(name))
    if words[0] == "clusterformer":
        assert run(*in_the_checkout(tiny(words))[1:]) == 0, words
    elif words[0] == "python" and words[1].endswith(".py"):
        script = ROOT / words[1]
        with mock.patch("sys.argv", [str(script), *tiny(words)[2:]]), ends_well():
            runpy.run_path(str(script), run_name="__main__")
    elif words[0] == "python":
        with mock.patch("sys.argv", [words[2], *tiny(words)[3:]]), ends_well():
            runpy.run_module(words[2], run_name="__main__")
    else:
        fairseq(tiny(words))


@contextlib.contextmanager
def ends_well() -> Iterator[None]:
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise


def to_run(page: Path) -> list[list[str]]:
    return [words for words in commands(page) if not reason(words)]


#: README.md, docs/, and of the examples one page and one configuration
BY_DEFAULT = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
BY_DEFAULT += [*ROOT.glob("examples/classification/**/*.*")]


@pytest.mark.parametrize(
    "page",
    sampled(filter(to_run, (*PAGES, *CONFIGURATIONS)), BY_DEFAULT),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    for words in to_run(page):
        monkeypatch.setattr("sys.stdin", io.StringIO("The cat\n"))
        execute(words)


def test_what_is_not_run_is_on_a_page() -> None:
    lines = [shlex.join(words) for page in (*PAGES, *CONFIGURATIONS) for words in commands(page)]
    for begin in NOT_RUN:
        assert any(re.match(begin, line) for line in lines), begin


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda config: config.stem)
def test_overrides_are_options_of_their_configuration(config: Path) -> None:
    """Whatever its comments name can be given behind the command as it is written."""
    comments = "\n".join(re.findall(r"^#(.*)$", config.read_text(), flags=re.MULTILINE))
    sections = "common|task|model|criterion|optimization|optimizer|dataset|checkpoint"
    sections += "|lr_scheduler|distributed_training"
    found = re.findall(rf"\+?\b(?:{sections})\.\w+=[^\s`,;]+", comments)
    assert found
    hydra_init(config.stem)
    for line in (line for line in found if "/G]" not in line):
        with initialize_config_dir(str(config.parent), version_base="1.1"):
            compose(config.stem, [re.sub("='.*", "=any", line).rstrip(".")])
