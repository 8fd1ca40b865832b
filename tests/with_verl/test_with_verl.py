"""Thresholds in verl itself: its DataProto, its TransferQueue and its drivers in, `ConstrainedAdvantages`' numbers out.

Skipped without verl, see CONTRIBUTING.md. The v1 trainer's queue is a real one, in a local Ray.
"""

import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytest.importorskip("verl")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "lightning_cgrpo.verl")

import numpy as np
import torch
from hydra import compose, initialize_config_module
from verl import DataProto

import lightning_cgrpo.verl  # noqa: F401 (verl has imported it already, if the environment says so)
from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.multipliers import SoftmaxAdam

OBJECTIVE = Objective("score", {"vowels": Constraint(at_least=0.8)})
DECLARED = "+lightning_cgrpo.objective={reward: score, constraints: {vowels: {at_least: 0.8}}}"
GROUP = 4


def config_of(folder, *overrides, declared=DECLARED):
    given = ["algorithm.adv_estimator=constrained", f"actor_rollout_ref.rollout.n={GROUP}", declared]
    given += [f"trainer.default_local_dir={folder}", "trainer.total_training_steps=100", *overrides]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[text for text in given if text])


def drawn(seed, prompts=3, group=GROUP):
    """Scores and vowels ``[prompts, group]``; some answers have no vowels to count."""
    draw = np.random.default_rng(seed)
    score = draw.random((prompts, group)).astype(np.float32)
    vowels = (draw.random((prompts, group)) < 0.5).astype(np.float32)
    vowels[draw.random((prompts, group)) < 0.2] = np.nan
    return {"score": torch.tensor(score), "vowels": torch.tensor(vowels)}


def plain(value):
    """As a reward function returns it."""
    return None if math.isnan(value) else float(value)


# ---------------------------------------------------------------------- v0: a DataProto


def saved():
    """Stands for verl's workers and data loader, which have states of their own."""
    made = MagicMock(**{"state_dict.return_value": {}, "__len__.return_value": 7})
    made.save_checkpoint.side_effect = lambda path, *_, **__: os.makedirs(path, exist_ok=True)
    return made


def v0(config):
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, Role

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayPPOTrainer, "_create_dataloader", lambda self, *_: None)
        trainer = RayPPOTrainer(config, None, {Role.ActorRollout: None}, None)
    return equipped(trainer)


def v1(config):
    from verl.trainer.ppo.v1 import get_trainer_cls

    return equipped(get_trainer_cls(config.trainer.v1.trainer_mode)(config=config))


def equipped(trainer):
    trainer.actor_rollout_wg, trainer.train_dataloader, trainer.use_critic = saved(), saved(), False
    trainer.total_training_steps, trainer.global_steps = 100, 0
    return trainer


def proto(measured, length=5):
    """Rows of a batch, with the groups' answers in turn, as verl's balancing may leave them; and this order."""
    number = measured["score"].numel()
    order = np.arange(number).reshape(-1, GROUP).T.flatten()
    scores = torch.zeros(number, length)
    scores[:, 2] = measured["score"].flatten()[order]
    mask = torch.ones(number, length)
    mask[:, 3:] = 0
    uids = np.array([f"prompt {row // GROUP}" for row in order], dtype=object)
    vowels = np.array([plain(value) for value in measured["vowels"].flatten()[order].tolist()], dtype=object)
    batch = {"token_level_rewards": scores, "response_mask": mask}
    return DataProto.from_dict(batch, non_tensors={"uid": uids, "vowels": vowels}), torch.tensor(order)


def v0_step(trainer, measured):
    """Advantages of v0's driver in the order of `measured`, and its metrics."""
    from verl.trainer.ppo import ray_trainer

    data, order = proto(measured)
    data = ray_trainer.compute_advantage(data, "constrained", config=trainer.config.algorithm)
    assert torch.equal(data.batch["returns"], data.batch["advantages"])
    assert torch.equal(data.batch["advantages"][:, 3:], torch.zeros(len(order), 2))
    advantages = torch.empty(len(order))
    advantages[order] = data.batch["advantages"][:, 0]
    data.batch["token_level_scores"] = data.batch["token_level_rewards"]
    data.batch["responses"], data.batch["attention_mask"] = data.batch["response_mask"], torch.ones(len(order), 9)
    data.batch["prompts"] = torch.ones(len(order), 4)
    return advantages.view_as(measured["score"]), ray_trainer.compute_data_metrics(batch=data, use_critic=False)


# ---------------------------------------------------------------------- v1: keys of a queue


@pytest.fixture(scope="module")
def queue():
    import ray
    import transfer_queue

    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)
    transfer_queue.init()
    yield transfer_queue
    transfer_queue.close()
    ray.shutdown()


def put(queue, step, answers):
    """Rows in the queue, as verl's agent loops put them: (uid, session, part, score, returned values, padding)."""
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    keys, fields, tags = [], [], []
    for uid, session, part, score, returned, padding in answers:
        length = 3 + part
        scores = torch.zeros(length)
        scores[-1] = score
        keys.append(f"{uid}_{session}_{part}")
        fields.append(
            {
                "uid": str(uid),
                "response_mask": torch.ones(length, dtype=torch.int64) * (not padding),
                "rm_scores": scores,
                "extra_fields": {"reward_extra_info": returned},
                "extra_info": {"kind": "easy" if str(uid).endswith("0") else "hard"},
            }
        )
        tags.append({"status": "success", "seq_len": length, "is_padding": padding})
    partition = f"train {step}"
    queue.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields), tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id=partition)


def v1_rows(trainer, queue, step, answers):
    """Advantages of the first token of each row, by v1's own `_compute_advantage`."""
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=())
    batch = put(queue, step, answers)
    trainer._compute_advantage(batch, metrics={})
    data = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["advantages"])
    return torch.stack([row[0] for row in data["advantages"].unbind()])


def answers_of(measured, prefix="p"):
    pairs = zip(measured["score"].flatten().tolist(), measured["vowels"].flatten().tolist(), strict=True)
    values = [(score, {"vowels": plain(vowels)}) for score, vowels in pairs]
    return [(f"{prefix}{n // GROUP}", n % GROUP, 0, *value, False) for n, value in enumerate(values)]


def v1_step(trainer, queue, step, measured):
    advantages = v1_rows(trainer, queue, step, answers_of(measured)).view_as(measured["score"])
    return advantages, trainer.constrained_grpo.take_logged()


@pytest.fixture(params=["v0", "v1"])
def driver(request, tmp_path):
    """Makes a trainer and the function of its step."""
    queue = request.getfixturevalue("queue") if request.param == "v1" else None

    def make(*overrides, **options):
        trainer = (v1 if queue else v0)(config_of(tmp_path, *overrides, **options))
        steps = iter(range(10**6))
        salt = id(trainer)
        if queue:
            return trainer, lambda measured: v1_step(trainer, queue, f"{salt} {next(steps)}", measured)
        return trainer, lambda measured: v0_step(trainer, measured)

    return make


# ---------------------------------------------------------------------- the same numbers


def test_advantages_and_weights_are_those_of_the_package(driver):
    """Six updates to the bit, with answers to which the signal does not apply."""
    _, step = driver()
    expected = ConstrainedAdvantages(OBJECTIVE)
    for seed in range(6):
        measured = drawn(seed)
        weights = expected.weights
        advantages, metrics = step(measured)
        assert torch.equal(advantages, expected(measured))
        assert [metrics[f"weight/{name}"] for name in weights] == list(weights.values())
        vowels = measured["vowels"][measured["vowels"].isfinite()]
        assert metrics["rate/vowels"] == pytest.approx(float(vowels.mean()))
        assert metrics["threshold/vowels"] == 0.8
        assert metrics.get("inapplicable/vowels", 0) == pytest.approx(1 - len(vowels) / 12)
    assert expected.weights != ConstrainedAdvantages(OBJECTIVE).weights


def test_a_killed_run_continues_exactly(driver, tmp_path):
    """Three steps, a checkpoint, one step that is lost; a new trainer resumes with the same weights."""
    declared = "+lightning_cgrpo={objective: {reward: score, constraints: {vowels: {at_least: 0.8}}}"
    declared += ", controller: {class_path: SoftmaxAdam, init_args: {lr: 0.02}}}"
    expected = ConstrainedAdvantages(OBJECTIVE, SoftmaxAdam(lr=0.02))
    trainer, step = driver(declared=declared)
    for seed in range(3):
        step(drawn(seed))
        expected(drawn(seed))
    trainer.global_steps = 3
    trainer._save_checkpoint()
    step(drawn(99))

    resumed, step = driver(declared=declared)
    resumed._load_checkpoint()
    assert resumed.global_steps == 3 and resumed.constrained_grpo.advantages.updates == 3
    for seed in range(3, 6):
        advantages, _ = step(drawn(seed))
        assert torch.equal(advantages, expected(drawn(seed)))
    assert resumed.constrained_grpo.advantages.weights == expected.weights
    named, _ = driver("trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/global_step_3")
    with pytest.raises(UserError, match="by SoftmaxAdam"):
        named._load_checkpoint()


def train_until_killed(folder):
    """In a process of its own: a step and a checkpoint at a time."""
    trainer = v0(config_of(folder))
    for seed in range(10**6):
        v0_step(trainer, drawn(seed))
        trainer.global_steps = seed + 1
        trainer._save_checkpoint()


def test_a_process_that_was_killed_continues_exactly(tmp_path):
    """SIGKILL at any moment after three checkpoints, also within a step or a checkpoint."""
    program = f"import runpy; runpy.run_path({__file__!r})['train_until_killed']({str(tmp_path)!r})"
    latest = tmp_path / "latest_checkpointed_iteration.txt"
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        while not (latest.exists() and int(latest.read_text() or 0) >= 3):
            assert process.poll() is None
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
    resumed = v0(config_of(tmp_path))
    resumed._load_checkpoint()
    steps = resumed.global_steps
    assert steps >= 3
    expected = ConstrainedAdvantages(OBJECTIVE)
    for seed in range(steps):
        expected(drawn(seed))
    for seed in range(steps, steps + 3):
        assert torch.equal(v0_step(resumed, drawn(seed))[0], expected(drawn(seed)))
    assert resumed.constrained_grpo.advantages.weights == expected.weights


def test_a_checkpoint_without_multipliers_is_told(driver, tmp_path):
    trainer, _ = driver()
    trainer.global_steps = 2
    trainer._save_checkpoint()
    (tmp_path / "global_step_2" / "lightning_cgrpo.pt").unlink()
    resumed, _ = driver()
    with pytest.warns(UserWarning, match=r"has no lightning_cgrpo\.pt"):
        resumed._load_checkpoint()


def test_another_estimator_is_left_alone(driver, tmp_path):
    trainer, _ = driver("algorithm.adv_estimator=grpo", declared=None)
    assert trainer.constrained_grpo is None
    trainer.global_steps = 1
    trainer._save_checkpoint()
    assert not (tmp_path / "global_step_1" / "lightning_cgrpo.pt").exists()


# ---------------------------------------------------------------------- batches of v1


def test_a_session_of_several_trajectories_is_one_answer_of_an_uneven_group(queue, tmp_path):
    """Its last part has the signals, and all parts get the advantage. Padding, a copy of an answer, counts nowhere;
    sessions that failed are not there, and are no answers without vowels.
    """
    measured = drawn(5)
    measured["vowels"] = measured["vowels"].nan_to_num(1)
    there = torch.ones(3, 4, dtype=torch.bool)
    there[0, 3] = there[2, 2] = there[2, 3] = False
    answers = []
    for n, (uid, session, _, *values) in enumerate(answers_of(measured)):
        parts = [(uid, session, part, *values) for part in range(1 + n % 3)] if there.flatten()[n] else []
        answers += parts[::-1] if n % 2 else parts
    copies = [("pad", 0, 0, 0.0, answers[0][4], True), ("pad", 1, 0, 0.0, answers[0][4], True)]
    trainer = v1(config_of(tmp_path))
    advantages = v1_rows(trainer, queue, "sessions", [*copies, *answers])
    expected = ConstrainedAdvantages(OBJECTIVE)
    values = expected({name: value.masked_fill(~there, math.nan) for name, value in measured.items()})
    assert torch.equal(advantages[:2], torch.zeros(2))
    assert advantages[2:].tolist() == [float(values[int(uid[1]), session]) for uid, session, *_ in answers]
    assert trainer.constrained_grpo.advantages.weights == expected.weights
    logged = trainer.constrained_grpo.take_logged()
    assert logged["rate/vowels"] == pytest.approx(float(measured["vowels"][there].mean()))
    assert "inapplicable/vowels" not in logged


def test_constraints_on_subsets_read_extra_info(queue, tmp_path):
    declared = DECLARED.replace("0.8", "0.8, by: {kind: [easy, hard]}")
    trainer = v1(config_of(tmp_path, declared=declared))
    measured = drawn(1)
    measured["vowels"] = measured["vowels"].nan_to_num(0)
    _, logged = v1_step(trainer, queue, "kinds", measured)
    assert logged["rate/vowels/kind=easy"] == pytest.approx(float(measured["vowels"][0].mean()))
    assert logged["rate/vowels/kind=hard"] == pytest.approx(float(measured["vowels"][1:].mean()))


def test_metrics_reach_tensorboard(queue, tmp_path, monkeypatch):
    """Of two batches a step, by v1's `step` and verl's own logger; "max" in a name takes no maximum."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils.tracking import Tracking

    declared = "+lightning_cgrpo.objective={reward: score, constraints: {vowels_max: {at_least: 0.8, signal: vowels}}}"
    trainer = v1(config_of(tmp_path, "+trainer.v1.sync.parameter_sync_step=2", declared=declared))
    rates, batches = [], iter((drawn(1), drawn(2)))

    def step_once(self, metrics, timing_raw, sample_batch_size):
        measured = next(batches)
        rates.append(float(measured["vowels"].nanmean()))
        answers = answers_of(measured, prefix=f"{len(rates)} ")
        v1_rows(self, queue, f"logged {len(rates)}", answers)
        return put(queue, f"again {len(rates)}", answers)

    monkeypatch.setattr(PPOTrainer, "_step_once", step_once)
    monkeypatch.setattr(PPOTrainer, "prepare_step", lambda self: {})
    metrics = {}
    trainer.step(metrics, {})
    assert metrics["rate/vowels_max"] == pytest.approx(sum(rates) / 2)

    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "board"))
    tracking = Tracking("project", "experiment", default_backend="tensorboard")
    tracking.log(metrics, step=1)
    tracking.finish()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert {"rate/vowels_max", "weight/vowels_max", "threshold/vowels_max"} <= set(board.Tags()["scalars"])


# ---------------------------------------------------------------------- refusals


def test_a_signal_that_no_answer_has_is_refused_in_one_line(driver):
    _, step = driver(declared=DECLARED.replace("vowels", "vowel"))
    with pytest.raises(UserError, match=r"return 'vowel', but got .*Did you mean 'vowels'") as error:
        step(drawn(0))
    assert "\n" not in str(error.value)


def test_a_schedule_beyond_the_run_is_refused(driver):
    trainer, _ = driver(declared=DECLARED.replace("0.8", "0.8, start: 0.2, over: 101"))
    with pytest.raises(UserError, match="over: 101"):
        trainer._load_checkpoint()
