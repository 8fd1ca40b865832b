"""Package metadata. Exact versions of everything are in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
(VERSION,) = re.findall(r'__version__ = "(.+)"', (ROOT / "lightning_cgrpo" / "__init__.py").read_text(encoding="utf-8"))


def description() -> str:
    """The README without pictures and without links into the repository, because an index can't follow them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^]]*\]\([^)]*\)\n*", "", text)
    return re.sub(r"\[([^]]+)\]\((?!https?://)[^)]*\)", r"\1", text)


PACKAGES = ("lightning_cgrpo", "driving_scenes", "navsim_score")
EXTRAS = {
    "lora": ["peft>=0.19"],
    "data": ["datasets>=4.0", "pyarrow>=21.0"],
    "math": ["math-verify>=0.8"],
    "gymnasium": ["gymnasium>=1.2", "minigrid>=3.0"],
    "worlds": ["gymnasium[mujoco]>=1.2", "highway-env>=1.10"],
    "wandb": ["wandb>=0.22"],
    "docs": ["latex2mathml>=3.81", "mkdocs>=1.6", "mkdocs-material>=9.8", "mkdocstrings-python>=2.0"],
}
# TRL reads data sets with pyarrow, whose own bound on NumPy isn't in its metadata.
EXTRAS["trl"] = ["trl>=1.16", *EXTRAS["data"]]
EXTRAS["dev"] = [
    *EXTRAS["lora"],
    *EXTRAS["data"],
    *EXTRAS["math"],
    *EXTRAS["gymnasium"],
    *EXTRAS["wandb"],
    *EXTRAS["trl"],  # also the losses' oracle
    *EXTRAS["docs"],
    "build>=1.6",
    "hypothesis>=6.170",
    "import-linter>=2.5",
    "mypy>=2.4",
    "pytest>=9.2",
    "pytest-xdist>=3.8",
    "ruff>=0.17",
    "stable-baselines3>=2.9",  # the oracle of a whole PPO update, and a baseline of worlds
]

setup(
    name="lightning_cgrpo",
    version=VERSION,
    description="Constrained GRPO on PyTorch Lightning: state behavior rates, let a Lagrangian do the weighting",
    long_description=description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    keywords=[
        "GRPO",
        "constrained reinforcement learning",
        "RLHF",
        "Lagrangian",
        "language models",
        "PyTorch Lightning",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    # callbacks, datamodules and configs are links to the folders at the top; setuptools follows them.
    packages=find_packages(include=[f"{package}{inside}" for package in PACKAGES for inside in ("", ".*")]),
    package_data={
        "driving_scenes": ["py.typed"],
        "navsim_score": ["py.typed", "*.md"],
        "lightning_cgrpo": [
            "py.typed",
            "*.pyi",
            "configs/*.yaml",
            "configs/**/*.yaml",
            "importable/**/*.py",
            "models/*/*",
        ],
    },
    install_requires=[
        "accelerate>=1.10",  # without it, transformers reads no model under a default device, as Lightning sets one
        "filelock>=3.18",
        "httpx>=0.28",
        "jsonargparse[signatures]>=4.52",
        "lightning>=2.6",
        "matplotlib>=3.10",
        "numpy>=1.26",
        "omegaconf>=2.3",
        "packaging>=24.0",
        "rich>=14.0",
        "scipy>=1.13",
        "shapely>=2.1",
        "tensorboard>=2.19",
        "torch>=2.9",
        "torchmetrics>=1.8",
        "transformers>=5.18",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["lightning_cgrpo = lightning_cgrpo.__main__:run"]},
)
