"""Constraints in TRL's trainer: advantages, weights and logs are this package's, and TRL keeps the rest."""

import importlib
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from lightning.pytorch import Callback, Trainer, seed_everything
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from lightning_cgrpo import (
    CausalLMPolicy,
    ConstrainedAdvantages,
    ConstrainedGRPO,
    Constraint,
    FunctionTask,
    GenerationSampler,
    Objective,
    ScalarizedAdvantages,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.fingerprints import identities
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.grpo.constrained_advantages import as_signals
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.trl import Lagrangian
from tests import trl_worker
from tests.samplers.talks import add
from tests.trl_worker import brief, vowels

ROOT = Path(__file__).parents[1]
OPTIONS = {field.name for field in fields(GRPOConfig)} - {field.name for field in fields(TrainingArguments)}
OBJECTIVE = Objective("brief", {"vowels": Constraint(at_least=0.8)})
PROMPTS = [{"prompt": f"Say {word}.", "kind": kind} for word in ("yes", "no") for kind in ("easy", "hard")]


def vowels_or_none(completions, **columns):
    """Nothing to say of a third of the texts."""
    return [None if len(text) % 3 == 0 else value for text, value in zip(completions, vowels(completions), strict=True)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_tiny_model(tmp_path_factory.mktemp("models") / "policy", hidden_size=16))


SETTINGS = {
    "per_device_train_batch_size": 16, "num_generations": 4, "max_steps": 2, "learning_rate": 1e-2, "seed": 1,
    "lr_scheduler_type": "constant", "max_completion_length": 6, "logging_steps": 1, "save_strategy": "no",
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True,
}  # fmt: skip


@pytest.fixture
def trainer_of(model, tmp_path):
    def make(functions, train_dataset=None, folder="out", parts=None, **settings):
        config = GRPOConfig(output_dir=str(tmp_path / folder), **SETTINGS | settings)
        data = Dataset.from_list(PROMPTS * 4) if train_dataset is None else train_dataset
        return GRPOTrainer(model=model, reward_funcs=functions, args=config, train_dataset=data, **parts or {})

    return make


@pytest.fixture
def bounded(trainer_of):
    """A trainer with a Lagrangian."""

    def make(objective=OBJECTIVE, functions=(brief, vowels), **settings):
        trainer = trainer_of(list(functions), **settings)
        return trainer, Lagrangian(trainer, objective)

    return make


def logged(trainer, key):
    return [line[key] for line in trainer.state.log_history if key in line]


# ---------------------------------------------------------------------- advantages


class Watch(Callback):
    def __init__(self):
        self.updates = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = pl_module.weights.tolist()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.updates.append((outputs["measured"], outputs["advantages"], self.before))


def replay(signal):
    """A value of each answer as a reward function returned it."""
    applicable = torch.ones_like(signal.value, dtype=torch.bool) if signal.applicable is None else signal.applicable
    pairs = zip(signal.value.flatten().tolist(), applicable.flatten().tolist(), strict=True)
    return [value if there else None for value, there in pairs]


@pytest.mark.parametrize("scale", ["group", "pooled"])
def test_advantages_and_weights_are_those_of_constrained_grpo(model, trainer_of, scale):
    """Six updates at equal draws, with answers to which a function does not apply."""
    seed_everything(3, verbose=False)
    watch = Watch()
    module = ConstrainedGRPO(
        CausalLMPolicy(model),
        GenerationSampler(max_new_tokens=6),
        FunctionTask({"brief": brief, "vowels": vowels_or_none}),
        OBJECTIVE,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        estimator=ScalarizedAdvantages(scale),
        group_size=4,
    )
    Trainer(
        max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[LagrangianCallback(), watch],
    ).fit(module, PromptDataModule([{"prompt": f"Say {n}."} for n in range(8)], prompts_per_update=4))  # fmt: skip

    records = {}
    functions = [named(name, lambda name=name: records[name]) for name in ("brief", "vowels")]
    trainer = trainer_of(functions, num_generations_eval=2)
    lagrangian = Lagrangian(trainer, OBJECTIVE, scale=scale)
    for measured, expected, weights in watch.updates:
        # An evaluation between updates moves neither weights nor the running deviation.
        records.update({"brief": [float(n) for n in range(16)], "vowels": [n % 2 for n in range(16)]})
        trainer.model.eval()
        trainer._generate_and_score_completions([PROMPTS[0]] * 16)
        trainer.model.train()
        records.update({name: replay(signal) for name, signal in measured.items()})
        assert list(lagrangian.advantages.weights.values()) == weights
        output = trainer._generate_and_score_completions([PROMPTS[0]] * 16)
        assert torch.equal(output["advantages"], expected.flatten())
        assert list(trainer._logs["advantages"])[-16:] == output["advantages"].tolist()
    assert any(None in replay(measured["vowels"]) for measured, _, _ in watch.updates)
    assert watch.updates[-1][2] != watch.updates[0][2]


def named(name, values):
    def function(completions, **columns):
        return values()

    function.__name__ = name
    return function


def test_groups_of_one_update_by_the_estimator_itself():
    """The public class, in a loop of one's own: NaN does not apply, and evaluations leave no trace."""
    torch.manual_seed(0)
    values = {"brief": torch.randn(3, 4), "vowels": torch.tensor([[0, torch.nan, 1, 1.0], [0, 1, 0, 0], [1, 1, 0, 1]])}
    advantages_of, estimator = ConstrainedAdvantages(OBJECTIVE, SoftmaxAdam()), ScalarizedAdvantages()
    weights = torch.tensor(list(advantages_of.weights.values()), dtype=torch.float64)
    signals = as_signals(values)
    evaluated = advantages_of.evaluate(signals)
    expected = estimator(None, group_statistics(OBJECTIVE.components(signals)), weights)
    assert torch.equal(advantages_of(values), expected)
    assert torch.equal(evaluated, expected), "an evaluation does not warm the running deviation up"
    assert advantages_of.weights["vowels"] > 0.5, "fewer than 0.8 have vowels"


# ---------------------------------------------------------------------- a run


def test_one_dual_step_a_generation_and_none_in_evaluation(trainer_of):
    """Two passes over each generation of two batches: 4 optimizer steps are 2 generations."""
    passes = {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "num_iterations": 2, "max_steps": 8}
    passes |= {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 16}
    evaluated = {"eval_dataset": Dataset.from_list(PROMPTS)}
    trainer = trainer_of([brief, vowels], parts=evaluated, eval_strategy="steps", eval_steps=1, **passes)
    lagrangian = Lagrangian(trainer, OBJECTIVE, SoftmaxAdam())
    trainer.train()
    assert lagrangian.advantages.updates == 2
    weights = logged(trainer, "weight/vowels")
    assert len(weights) == 2 and weights[0] == 0.5
    assert lagrangian.advantages.weights["vowels"] != weights[1]
    assert len(logged(trainer, "eval_rate/vowels")) == 8
    assert logged(trainer, "eval_weight/vowels") == []


def test_logs_have_rates_weights_thresholds_and_raw_rewards(bounded):
    trainer, _ = bounded()
    trainer.train()
    assert logged(trainer, "rate/vowels") == pytest.approx(logged(trainer, "rewards/vowels/mean"))
    assert logged(trainer, "reward") == pytest.approx(logged(trainer, "rewards/brief/mean"))
    assert all(-0.5 < value < 0 for value in logged(trainer, "rewards/brief/mean")), "lengths / 100, unscaled"
    assert logged(trainer, "threshold/vowels") == [0.8, 0.8]
    both = zip(logged(trainer, "weight/reward"), logged(trainer, "weight/vowels"), strict=True)
    assert [sum(pair) for pair in both] == pytest.approx([1, 1])


def test_rates_before_and_after_training_are_shown_with_intervals(bounded, capsys):
    """The first generation has the rates of the untrained policy; the last fifth of the generations is the end."""
    trainer, _ = bounded(max_steps=10)
    trainer.train()
    before, end = capsys.readouterr().out.split("Run finished")
    rates = logged(trainer, "rate/vowels")
    assert "Before training" in before and f"{rates[0]:.3f}" in before and "best of 4" in before
    assert f"{rates[0]:.3f}" in end and f"{(rates[-2] + rates[-1]) / 2:.3f}" in end and "end of training" in end
    brief_before, *_, brief_end = logged(trainer, "rewards/brief/mean")
    assert f"{brief_before:.3f}"[:5] in end and "±" in end and brief_end != brief_before


def test_prompts_are_those_that_an_environment_has_completed(bounded):
    """Rows have no prompt, and each environment asks another question."""
    _, lagrangian = bounded()
    asked = [[{"role": "user", "content": f"Question {number // 4}"}] for number in range(8)]
    lagrangian._calculate_rewards = lambda *_: torch.zeros(8, 2)
    lagrangian.calculate_rewards([{}] * 8, asked, ["a"] * 8, [[1]] * 8)
    prompts, _ = lagrangian.answered_prompts({"completion_mask": torch.ones(8, 3)})
    assert len(prompts) == 2 and len(identities(prompts).unique()) == 2


@pytest.mark.parametrize("controller", [None, pytest.param(SoftmaxAdam, marks=pytest.mark.slow)])
def test_a_resume_is_exact_at_a_border_of_generations(trainer_of, tmp_path, controller):
    def run(folder, checkpoint=None, **settings):
        trainer = trainer_of([brief, vowels_or_none], folder=folder, num_iterations=2, max_steps=8, **settings)
        objective = Objective("brief", {"vowels_or_none": Constraint(at_least=0.8, start=0.2, over=3)})
        lagrangian = Lagrangian(trainer, objective, None if controller is None else controller())
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer, lagrangian.advantages

    through, advantages = run("through", save_strategy="steps", save_steps=4)
    checkpoint = str(tmp_path / "through" / "checkpoint-4")
    resumed, continued = run("resumed", checkpoint)
    assert continued.weights == advantages.weights and continued.thresholds == advantages.thresholds
    assert continued.updates == advantages.updates == 4
    for a, b in zip(through.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert logged(resumed, "weight/reward") == logged(through, "weight/reward")


@pytest.mark.slow
def test_a_checkpoint_without_multipliers_is_told(trainer_of, bounded, tmp_path):
    trainer_of([brief, vowels], folder="plain", save_strategy="steps", save_steps=1).train()
    trainer, _ = bounded()
    with pytest.warns(UserWarning, match="no multipliers"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-1"))


@pytest.mark.slow
def test_constraints_on_subsets_read_the_columns_of_the_data(bounded):
    trainer, _ = bounded(Objective("brief", {"vowels": Constraint(at_least=0.8, by={"kind": ["easy", "hard"]})}))
    trainer.train()
    parts = [logged(trainer, f"rate/vowels{part}") for part in ("", "/kind=easy", "/kind=hard")]
    assert parts[0] == pytest.approx([(easy + hard) / 2 for easy, hard in zip(*parts[1:], strict=True)])
    assert logged(trainer, "weight/vowels/kind=hard")


# ---------------------------------------------------------------------- kinds of scripts


@pytest.mark.slow
def test_a_reward_model_is_bounded_by_the_name_of_its_directory(bounded, model, tmp_path):
    """A script of TRL's documentation: a reward model beside a function, here with a bound on its mean score."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = AutoConfig.from_pretrained(model, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "helpful")
    tokenizer.save_pretrained(tmp_path / "helpful")
    objective = Objective("brief", {"helpful": Constraint(mean_at_least=0.5)})
    trainer, _ = bounded(objective, (str(tmp_path / "helpful"), brief))
    trainer.train()
    assert logged(trainer, "mean/helpful") == pytest.approx(logged(trainer, "rewards/helpful/mean"))
    assert logged(trainer, "threshold/helpful") == [0.5, 0.5]


@pytest.mark.slow
def test_tools_are_called_as_before(trainer_of, model, tmp_path, monkeypatch):
    """TRL calls the tool of an answer that asks for it, and the function sees the conversation."""

    def used_tool(completions, **columns):
        return [float(any(message["role"] == "tool" for message in messages)) for messages in completions]

    def short(completions, **columns):
        return [-float(len(str(messages))) for messages in completions]

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{n} + 1?"}]} for n in range(8)])
    size = {"max_steps": 1, "per_device_train_batch_size": 4, "max_completion_length": 160}
    trainer = trainer_of([short, used_tool], data, parts={"tools": [add], "processing_class": tokenizer}, **size)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 1}}\n</tool_call><|im_end|>'
    sampled, turns = trainer._generate_single_turn, []

    def first_answer_calls(prompt_ids, *rest, **named):
        ids, *others = sampled(prompt_ids, *rest, **named)
        turns.append(len(ids))
        if len(turns) % 2:  # the model is random, so the call is written for it
            ids[0] = tokenizer(call)["input_ids"]
        return (ids, *others)

    monkeypatch.setattr(trainer, "_generate_single_turn", first_answer_calls)
    Lagrangian(trainer, Objective("short", {"used_tool": Constraint(at_least=0.5)}))
    trainer.train()
    assert logged(trainer, "rate/used_tool") == [1 / 4]
    assert logged(trainer, "tools/call_frequency")[0] > 0


# ---------------------------------------------------------------------- refusals


REFUSED = [
    ("reward_weights", [1.0, 2.0], "reward_weights"),
    ("reward_weights", [0.5, 0.5], "reward_weights"),
    ("multi_objective_aggregation", "normalize_then_sum", "normalize_then_sum"),
    ("scale_rewards", "batch", "scale_rewards"),
    ("scale_rewards", "none", "scale_rewards"),
]
BY_ITSELF = "which ConstrainedGRPO measures by itself, .*"


@pytest.mark.parametrize(("option", "value", "told"), REFUSED)
def test_options_of_another_method_are_refused(bounded, option, value, told):
    with pytest.raises(UserError, match=told):
        bounded(**{option: value})


@pytest.mark.parametrize(
    ("constraints", "told"),
    [
        ({"vowel": Constraint(at_least=0.8)}, "Did you mean 'vowels'"),
        ({}, "to have a constraint"),
        ({"kl": Constraint(mean_at_most=0.1)}, "policy's own 'kl'"),
        ({"truncated": Constraint(at_most=0.1)}, f"{BY_ITSELF}without the tokenizer's end token"),
        ({"length": Constraint(mean_at_least=-0.5)}, f"{BY_ITSELF}by max_completion_length"),
        (
            {"long": Constraint(at_most=0.1, signal="tokens", violated_above=9)},
            rf"{BY_ITSELF}def tokens\(completion_ids, \*\*_\)",
        ),
    ],
)
def test_constraints_on_what_no_function_returns_are_refused_with_a_remedy(bounded, constraints, told):
    with pytest.raises(UserError, match=told):
        bounded(Objective("brief", constraints))


def test_the_table_has_all_options_of_trl_once():
    text = (ROOT / "docs/trl.md").read_text()
    rows = text.partition("## Options of `GRPOConfig`")[2].partition("\n## ")[0].splitlines()
    named = [option for row in rows if row.startswith("| ") for option in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(OPTIONS)


def test_options_refused_are_those_of_the_table():
    (row,) = re.findall(r"^\| refused.*$", (ROOT / "docs/trl.md").read_text(), re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", row)} == {option for option, *_ in REFUSED}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_iterations": 2, "beta": 0.1, "temperature": 0.7, "top_k": 50},
        {"mask_truncated_completions": True, "repetition_penalty": 1.2},
        {"loss_type": "dr_grpo", "importance_sampling_level": "sequence", "steps_per_generation": 2},
    ],
)
def test_the_advantages_alone_are_replaced_in_trls_output(trainer_of, bounded, settings):
    outputs = []
    for trainer in (trainer_of([brief, vowels], **settings), bounded(folder="bounded", **settings)[0]):
        seed_everything(3, verbose=False)
        trainer.model.train()
        rows = [row for row in PROMPTS for _ in range(4)]
        outputs.append(trainer._generate_and_score_completions([dict(row) for row in rows]))
    plain, ours = outputs
    assert plain.keys() == ours.keys()
    differing = [key for key in plain if not _equal(plain[key], ours[key])]
    assert differing == ["advantages"] and plain["advantages"].shape == ours["advantages"].shape


def _equal(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_two_functions_of_one_name_and_a_second_lagrangian_are_refused(bounded):
    with pytest.raises(UserError, match="one reward function 'vowels'"):
        bounded(functions=(brief, vowels, vowels))
    trainer, _ = bounded()
    with pytest.raises(UserError, match="one Lagrangian"):
        Lagrangian(trainer, OBJECTIVE)


def test_a_lagrangian_after_training_is_refused(trainer_of):
    trainer = trainer_of([brief, vowels], max_steps=1)
    trainer.train()
    with pytest.raises(UserError, match=r"before train\(\), but it has taken 1 steps"):
        Lagrangian(trainer, OBJECTIVE)


def test_a_schedule_is_counted_in_generations(bounded):
    """Two passes over each generation: 8 steps are 4 generations, so a schedule of 5 would never end."""

    def trained(over):
        objective = Objective("brief", {"vowels": Constraint(at_least=0.8, start=0.2, over=over)})
        trainer, _ = bounded(objective, num_iterations=2, max_steps=8)
        trainer.train()
        return logged(trainer, "threshold/vowels")

    assert trained(4) == pytest.approx([0.2, 0.35, 0.5, 0.65])
    with pytest.raises(UserError, match="within the run's 4 updates"):
        trained(5)


def test_another_threshold_at_a_resume_is_told():
    before = ConstrainedAdvantages(OBJECTIVE)
    after = ConstrainedAdvantages(Objective("brief", {"vowels": Constraint(at_least=0.9)}))
    with pytest.warns(UserWarning, match=r"'vowels' continues with at_least: 0\.9, .* with at_least: 0\.8"):
        after.load_state_dict(before.state_dict())


@pytest.mark.slow
def test_two_processes_have_the_advantages_of_all_rewards(model, tmp_path):
    """Groups split between processes, evaluations between generations: rows, counts and deviations of all answers."""
    first, second = launched(tmp_path, model)
    whole, generations = first["through"], first["through"]["generations"]
    expected = ConstrainedAdvantages(trl_worker.OBJECTIVE)
    assert len(generations) == len(second["through"]["generations"]) == 3
    for (rewards, here), (same, there) in zip(generations, second["through"]["generations"], strict=True):
        assert torch.equal(rewards, same) and len(rewards) == 12 and not torch.equal(rewards[:6], rewards[6:])
        groups = dict(zip(("brief", "vowels"), rewards.T.reshape(2, 3, 4), strict=True))
        assert torch.equal(torch.cat([here, there]), expected(groups).flatten())
    assert whole["weights"] == second["through"]["weights"] == expected.weights

    # The schedule of thresholds counts generations, and an evaluation has the rate of both processes' answers.
    thresholds = [line["threshold/vowels"] for line in whole["log"] if "threshold/vowels" in line]
    assert thresholds == pytest.approx([0.2, 0.4, 0.6])
    rates = [line["eval_rate/vowels"] for line in whole["log"] if "eval_rate/vowels" in line]
    assert rates == pytest.approx([rewards[:, 1].mean().item() for rewards in whole["evaluations"]])
    assert len(rates) == 3 and len(whole["evaluations"][0]) == 12

    # Both processes resumed from the checkpoint after the first generation.
    for (rewards, here), (same, again) in zip(generations[1:], first["resumed"]["generations"], strict=True):
        assert torch.equal(rewards, same) and torch.equal(here, again)
    assert first["resumed"]["weights"] == second["resumed"]["weights"] == expected.weights


def launched(folder, model):
    """What both processes of trl_worker.py left, started by a user's command."""
    # `--multi_gpu` means several processes on one machine: `--cpu` starts one. The script itself asks for CPUs.
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    command += ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
    command += ["-m", "tests.trl_worker", str(folder), model]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder)}  # no configuration of the user's
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-3000:]
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


def test_functions_outside_of_the_objective_are_told(bounded):
    with pytest.warns(UserWarning, match="vowels_or_none"):
        bounded(functions=(brief, vowels, vowels_or_none))


def test_without_trl_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "lightning_cgrpo.trl")
    monkeypatch.delitem(sys.modules, "lightning_cgrpo.trl.lagrangian")
    with pytest.raises(UserError, match="TRL to be installed, but it is not, try pip install"):
        importlib.import_module("lightning_cgrpo.trl")
