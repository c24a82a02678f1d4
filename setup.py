"""Packaging of fairseq_clusterformer; the version stands in its __init__.py.

`scripts/setup.sh` installs all of this in the right order. By hand, the order matters too:
fairseq-fixed has no wheel for Python 3.11, so what builds it comes first:

    pip install torch==2.13.0 "setuptools>=77" wheel cython numpy
    PYTHONPATH=scripts/without_torch pip install --no-build-isolation fairseq-fixed==0.12.3.1
    pip install .
    pip uninstall --yes torchaudio

The second line leaves out fairseq's extensions that include torch's headers, and with them BASE
layers, Levenshtein and insertion models. Without PYTHONPATH=... they are compiled, in minutes.

fairseq-fixed asks for torchaudio, and none loads with this torch: transformers' Trainer, which
imports it if it is there, would not either. Each later `pip install` of this package brings it
back. (`pip check` then misses it, rightly.)

faiss exists twice, as faiss-cpu and as faiss-gpu. Both fill the same folder `faiss/`, so never
have both. An extra can add a requirement but not take one away: ".[gpu]" installs both, and two
commands must follow it. (`pip check` then misses faiss-cpu, rightly, and nothing else.)

    pip install ".[gpu]"
    pip uninstall --yes faiss-cpu faiss-gpu
    pip install --no-deps faiss-gpu
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
INIT = (HERE / "fairseq_clusterformer" / "__init__.py").read_text()

setup(
    name="fairseq_clusterformer",
    version=re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)[1],
    description="Clustered sparse attention for fairseq: ClusterFormer and its relatives",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="fairseq_clusterformer authors",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["fairseq_clusterformer", "fairseq_clusterformer.*"]),
    install_requires=[
        "fairseq-fixed>=0.12.3.1,<0.12.4",
        "torch>=2.11",
        "numpy>=2",
        "hydra-core>=1.3.2",
        "omegaconf>=2.3",
        "bm25s>=0.3",
        "faiss-cpu",
        "sacrebleu",
        "regex",
        "sacremoses",
        "sentencepiece>=0.2.3",
        "subword-nmt",
        "tqdm",
        # bundles, folders and kernels, pages, documents
        "filelock>=4.3",
        "jinja2",
        "markdown-it-py>=3",
        "pypdf",
        "safetensors",
        "selectolax>=0.4,<2",
        "tokenizers",
        # without it, each command of fairseq asks for it
        "tensorboardX",
    ],
    entry_points={"console_scripts": ["clusterformer=fairseq_clusterformer.cli.main:main"]},
    package_data={
        "fairseq_clusterformer": [
            "visual/templates/*",
            "documents/*.html",
            "kernels/cpu/*.cpp",
            "kernels/cpu/*.h",
            "trained/*/*",
        ]
    },
    extras_require={
        "gpu": ["faiss-gpu", "triton"],
        # clustering: pictures, as of scripts; the self-organising map of the comparison
        # documents: Word, Excel and RTF, and web pages without their menus
        # serve: the page to ask in; httpx: its test client
        # nbclient, ipykernel: a test runs the notebook
        # setuptools, wheel: a test installs the package;
        # triton: its kernels are tested under its interpreter, which takes today's numpy from 3.9;
        # a torch for CUDA brings an older one
        "dev": [
            "accelerate",
            "fastapi",
            "gensim>=4.3.3",
            "httpx",
            "ipykernel",
            "matplotlib",
            "minisom",
            "nbclient",
            "pytest>=8",
            "pytest-xdist",
            "ruff>=0.17,<0.18",
            "setuptools>=77",
            "lxml_html_clean",
            "mammoth",
            "openpyxl",
            "striprtf",
            "trafilatura",
            "transformers>=5.24,<5.25",
            "triton",
            "uvicorn",
            "wheel",
        ],
        "clustering": ["matplotlib", "minisom"],
        "documents": ["lxml_html_clean", "mammoth", "openpyxl", "striprtf", "trafilatura"],
        "serve": ["fastapi", "uvicorn"],
        "vectors": ["gensim>=4.3.3"],
        # its Trainer needs accelerate
        "transformers": ["transformers>=5.24,<5.25", "accelerate"],
        "bench": ["local-attention", "reformer-pytorch", "routing-transformer"],
    },
)
