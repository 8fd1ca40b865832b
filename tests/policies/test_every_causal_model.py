"""Every causal architecture of transformers is computed as transformers computes, or refused; a page says which."""

import copy
import re
import warnings
from pathlib import Path

import pytest
import transformers

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from tests.policies.causal_families import NAMES, build, configuration
from tests.policies.test_comparison import check, computation

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "every_model.md"
PINNED = re.search(r"^transformers==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
pytestmark = pytest.mark.skipif(transformers.__version__ != PINNED, reason=f"the page is about transformers {PINNED}")


def documented():
    """The computation of each architecture, by the table of the page."""
    rows = re.findall(r"^\| (shared|padded|single|uncached|refused|not tried) \|.*\| (.*) \|$", PAGE.read_text(), re.M)
    return {name: kind for kind, names in rows for name in re.findall(r"`(.*?)`", names)}


def test_the_page_names_every_architecture():
    assert sorted(documented()) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if documented().get(name) != "not tried"])
def test_it_is_computed_as_the_page_says(name, tokenizer, tmp_path):
    model = build(name)
    exact = copy.deepcopy(model)
    configuration(name).save_pretrained(tmp_path)
    policy = CausalLMPolicy(str(tmp_path))
    if documented()[name] == "refused":
        for load in (policy.load, lambda: policy.from_model(model, tokenizer)):
            with pytest.raises(UserError, match="try another model"):
                load()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = CausalLMPolicy.from_model(model, tokenizer)
    assert computation(policy) == documented()[name]
    check(policy, exact, atol=2e-3)
