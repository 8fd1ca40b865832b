"""A model's card has the numbers of that policy, and no others."""

import pytest
import yaml

from lightning_cgrpo.callbacks.model_card import write_card
from lightning_cgrpo.run.record import RunRecord

BOUND = {"kind": "rate", "direction": "at_least", "threshold": 0.9, "role": "constrain"}


def measured(update, value):
    constraints = {"safe|[b]": {"value": value, "low": value - 0.05, "high": value + 0.05}}
    return {"update": update, "prompts": 64, "constraints": constraints, "reward": {"value": 0.5, "error": 0.01}}


SUMMARY = {
    "name": "mine",
    "constraints": {"safe|[b]": BOUND},
    "measured": {"before": measured(0, 0.5), "last": measured(40, 0.7), "best": measured(20, 0.95)},
}
LOOK = {"at_least": 0.8, "rate": 0.96, "low": 0.92, "high": 1.0, "decision": "certified"}
CERTIFICATE = {
    "decision": "certified",
    "at": "2026-11-25T00:00:00",
    "prompts": 500,
    "question": {"prompts": None, "confidence": 0.95, "data": {"test prompts": "0f0f"}},
    "constraints": {"safe|[b]": LOOK},
    "look": 2,
    "assumptions": ["the prompts are independent", "an answer has at most 80 steps"],
    "not_certified": ["kl"],
    "not_as_in_training": ["precision 32-true -> bf16-mixed"],
    "prompts_fingerprint": "a0",
    "manifest": "b0",
    "policy": "c0",
    "digest": "d0",
}


def card(folder, update, base=None, certificates=()):
    write_card(folder, base, "ConstrainedGRPO", RunRecord.read(SUMMARY), update, "brief", certificates)
    text = (folder / "README.md").read_text()
    return yaml.safe_load(text.split("---")[1]), text


def test_rates_of_the_exported_policy_beside_those_before(tmp_path):
    head, text = card(tmp_path, 20, "Qwen/Qwen2.5-1.5B-Instruct")
    assert head["base_model"] == "Qwen/Qwen2.5-1.5B-Instruct" and head["library_name"] == "transformers"
    assert "| safe\\|[b] >= 0.9 | 0.500 (0.450-0.550) missed | 0.950 (0.900-1.000) met |" in text
    assert "| reward | 0.5 ± 0.01 | 0.5 ± 0.01 |" in text and "0.700" not in text and "No certificate" in text
    _, text = card(tmp_path, 40)
    assert "0.700 (0.650-0.750) missed" in text and "0.950" not in text
    _, text = card(tmp_path, 33)
    assert "0.500 (" in text and "0.700" not in text and "0.950" not in text, "nobody measured this policy"


def test_a_certificate_is_shown(tmp_path):
    _, text = card(tmp_path, 20, certificates=[CERTIFICATE])
    assert "certified, on 2026-11-25, with 500 prompts" in text and "No certificate" not in text
    assert "confidence 0.95 over all constraints and all looks along the lineage, of which this is look 2." in text
    assert "| safe\\|[b], at_least 0.8 | 0.9600 | 0.9200-1.0000 | certified |" in text
    assert "Assumes that the prompts are independent; that an answer has at most 80 steps." in text
    assert "Not certified: kl." in text and "Not as in training: precision 32-true -> bf16-mixed." in text
    assert "Fingerprints: prompts `a0`, manifest `b0`, policy `c0`, record `d0`, test file `0f0f`." in text
    assert "edited by hand" not in text
    assert "edited by hand" in card(tmp_path, 20, certificates=[CERTIFICATE | {"edited": True}])[1]


OTHER = {"license": "other", "license_name": "qwen-research", "license_link": "LICENSE"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: apache-2.0\ntags: [x]\n---\n# Base", {"license": "apache-2.0"}),
        (f"---\n{yaml.safe_dump(OTHER)}---\n", OTHER),
        ("# Base\nlicense: mit", {}),
        ("---\nlicense:\n---\n", {}),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_the_license_of_the_base_model_holds_on(tmp_path, monkeypatch, text, expected, cached):
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text(text)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(base / "README.md"))
    head, _ = card(tmp_path, 20, "Qwen/Qwen2.5-3B" if cached else str(base))
    assert {key: value for key, value in head.items() if key.startswith("license")} == expected
    assert head.get("base_model") == ("Qwen/Qwen2.5-3B" if cached else None)


def test_directories_are_no_base_models(tmp_path):
    head, _ = card(tmp_path, 20, str(tmp_path))
    assert "base_model" not in head
    assert "base_model" not in card(tmp_path, 20, "packaged:driver")[0]
    assert "base_model" not in card(tmp_path, 20, "a model from scratch")[0]
    (tmp_path / "adapter_config.json").write_text("{}")
    assert card(tmp_path, 20)[0]["library_name"] == "peft"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>x</script>", "&lt;script>x&lt;/script> >= 0.9"),
        ("<img src=x>", "&lt;img src=x> >= 0.9"),
        ("[here](http://x)", "[here]\\(http://x) >= 0.9"),
    ],
)
def test_names_with_markup_are_shown_as_they_are_written(name, shown, tmp_path):
    before = {"update": 0, "constraints": {name: {"value": 0.5}}, "reward": {"value": 0.5}}
    summary = {"name": name, "constraints": {name: BOUND}, "measured": {"before": before}}
    write_card(tmp_path, None, "ConstrainedGRPO", RunRecord.read(summary), 20, name)
    text = (tmp_path / "README.md").read_text()
    assert f"| {shown} | 0.500 |" in text and name not in text
