"""A tiny language model for the tests of policies."""

import pytest

from lightning_cgrpo.policies.tiny.text import make_tiny_model
from tests.policies.small_policies import TEMPERATURE, loaded


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, context_length=64)


@pytest.fixture(scope="module")
def tokenizer(directory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture
def policy(directory):
    return loaded(directory, temperature=TEMPERATURE, dtype="float64")
