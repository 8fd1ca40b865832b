"""Where starting weights come from."""

from pathlib import Path

import pytest

from lightning_cgrpo import CausalLMPolicy, VisionLanguagePolicy

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    ("policy", "results"),
    [
        (CausalLMPolicy("packaged:word-problems"), RESULTS / "gsm8k" / "paper"),
        (VisionLanguagePolicy("packaged:driver"), RESULTS / "navsim" / "main"),
    ],
    ids=["text", "vision"],
)
def test_a_policy_knows_its_starting_weights(policy, results):
    """The committed runs started from the same files."""
    assert policy.origin is None
    policy.load()
    assert policy.origin is not None and policy.origin.name == policy.name
    saved = sorted((results / "runs").glob("*.json"))
    assert saved and all(policy.origin.fingerprint in file.read_text() for file in saved)
