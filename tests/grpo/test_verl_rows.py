"""Rows of verl's batches as answers in groups, and refusals; tests/with_verl runs verl itself."""

import importlib
import math

import pytest
import torch
from omegaconf import OmegaConf

from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.grpo.verl_rows import Method, Rows
from lightning_cgrpo.grpo.verl_settings import Settings, settings_of
from lightning_cgrpo.multipliers import SoftmaxAdam

OBJECTIVE = Objective("score", {"vowels": Constraint(at_least=0.8)})


def config(section=None, estimator="constrained", n=4, **algorithm):
    section = {"objective": {"reward": "score", "constraints": {"vowels": {"at_least": 0.8}}}} | (section or {})
    algorithm = {"adv_estimator": estimator, "use_kl_in_reward": False} | algorithm
    rollout = {"rollout": {"n": n}}
    return OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": rollout, "lightning_cgrpo": section})


def test_uneven_groups_of_sessions_with_padding():
    """A row is a part of a session; its answer is the last part; groups have one, two and three answers."""
    scores = torch.tensor([9.0, 1.0, 2.0, 3.0, 4.0, 9.0, 5.0, 6.0])
    sessions = [("a0", 0), ("a0", 1), ("b0", 0), ("b1", 0), ("c0", 0), ("pad", 0), ("c1", 0), ("c2", 0)]
    vowels = [0.0, 1.0, 0.0, None, 1.0, 0.0, 0.0, True]
    method = Method(Settings(OBJECTIVE))
    method.rows = Rows({"vowels": vowels}, sessions=sessions, padding=[row == 5 for row in range(8)])
    advantages = method.estimate(scores, list("aabbcpcc"))
    nan, expected = math.nan, ConstrainedAdvantages(OBJECTIVE)
    scores_of_groups = torch.tensor([[1.0, nan, nan], [2.0, 3.0, nan], [4.0, 5.0, 6.0]])
    vowels_of_groups = torch.tensor([[1.0, nan, nan], [0.0, nan, nan], [1.0, 0.0, 1.0]])
    groups = expected({"score": scores_of_groups, "vowels": vowels_of_groups})
    assert torch.equal(advantages[[1, 2, 3, 4, 6, 7]], groups[[0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 2]])
    assert advantages[0] == advantages[1] and advantages[5] == 0
    assert method.advantages.weights == expected.weights
    logged = method.take_logged()
    assert logged["rate/vowels"] == pytest.approx(3 / 5)
    assert logged["inapplicable/vowels"] == pytest.approx(1 / 6)


def test_the_section_declares_the_method():
    controller = {"class_path": "SoftmaxAdam", "init_args": {"lr": 0.05}}
    settings = settings_of(config({"controller": controller, "scale": "group"}))
    assert settings.objective == OBJECTIVE and settings.scale == "group"
    assert isinstance(settings.controller, SoftmaxAdam) and settings.controller.lr == 0.05
    plain = OmegaConf.create({"algorithm": {"adv_estimator": "grpo"}})
    assert settings_of(plain) is None


def test_the_section_may_be_a_file(tmp_path):
    given = config()
    OmegaConf.save(given.lightning_cgrpo, tmp_path / "objective.yaml")
    given.lightning_cgrpo = str(tmp_path / "objective.yaml")
    assert settings_of(given).objective == OBJECTIVE


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda: config(estimator="grpo"), "try algorithm.adv_estimator=constrained"),
        (lambda: config(use_kl_in_reward=True), "use_kl_in_reward=false"),
        (lambda: config(norm_adv_by_std_in_grpo=False), "norm_adv_by_std_in_grpo=true"),
        (lambda: config(filter_groups={"enable": True}), "filter_groups.enable=false"),
        (lambda: config(n=1), "rollout.n of at least 2"),
        (lambda: config({"objectives": {}}), "Did you mean 'objective'"),
        (lambda: config({"scale": "batch"}), "pooled or group"),
        (lambda: config({"controller": "SoftmaxAdan"}), "Did you mean 'SoftmaxAdam'"),
        (lambda: config({"controller": {"class_path": "PID", "init_args": {"lr": 1}}}), "made from its init_args"),
        (lambda: config({"objective": {"reward": "score", "constraints": {"a": {"at_leas": 1}}}}), "'at_least'"),
        (lambda: config({"objective": None}), "to be like"),
        (lambda: OmegaConf.merge(config(), {"lightning_cgrpo": "nowhere.yaml"}), "no file nowhere.yaml"),
    ],
)
def test_what_would_be_another_method_is_refused(given, told):
    with pytest.raises(UserError, match=told) as error:
        settings_of(given())
    assert "\n" not in str(error.value)


def test_a_value_that_is_no_number_is_refused():
    method = Method(Settings(OBJECTIVE))
    method.rows = Rows({"vowels": [1.0, "many"]})
    with pytest.raises(UserError, match="a number as 'vowels', but got 'many'"):
        method.estimate(torch.zeros(2), ["a", "a"])


def test_without_verl_one_line_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "verl" else find(name))
    with pytest.raises(UserError, match="verl to be installed, but it is not"):
        importlib.import_module("lightning_cgrpo.verl")
