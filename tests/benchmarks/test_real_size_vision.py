"""The benchmark of real widths, with small ones: it goes through the paper's configuration, and measures."""

import json

import pytest

from benchmarks import real_size_vision
from lightning_cgrpo import ConstrainedGRPO

LANGUAGE = {
    "vocab_size": 3000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}


@pytest.mark.slow
def test_small_widths(monkeypatch, tmp_path):
    monkeypatch.setattr(real_size_vision, "LANGUAGE", real_size_vision.LANGUAGE | LANGUAGE)
    monkeypatch.setattr(real_size_vision, "VISION", real_size_vision.VISION | VISION)
    monkeypatch.setattr(real_size_vision, "RESULTS", tmp_path / "results.json")
    method = ConstrainedGRPO._optimize
    real_size_vision.main(["--layers=1", "--vision-layers=1", "--group-size=2", "--tokens=2"])
    found = json.loads((tmp_path / "results.json").read_text())
    assert {"load", "rollout", "optimize"} <= found["peak_gigabytes"].keys()
    assert 9 * 312 < found["prompt_tokens"] < 4096
    assert found["parameters"] > 3000 * 64
    assert ConstrainedGRPO._optimize is method, "nobody else is watched"
