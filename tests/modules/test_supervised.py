"""Supervised fine-tuning: the loss by hand, a policy that learns a demonstration, and a directory at the end."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.navsim.average import average
from lightning_cgrpo import (
    CausalLMPolicy,
    Constraint,
    GenerationSampler,
    GSM8KTask,
    Objective,
    SupervisedFineTuning,
    VisionLanguagePolicy,
)
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.callbacks import SavePretrained
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import PromptDataModule, WordProblemsDataModule
from lightning_cgrpo.modules.supervised import demonstration_rollouts
from tests.memory import flat
from tests.policies.small_policies import with_lora
from tests.quiet import QUIET, quiet_trainer

ROWS = [
    {"prompt": "1 + 1?\n", "answer": "2", "completion": "<think></think>\n<answer>2</answer>"},
    {"prompt": "Three and four?\n", "answer": "7", "completion": "<think>3 + 4</think>\n<answer>7</answer>"},
    {"prompt": "5?\n", "answer": "5", "completion": "5"},
]


def policy_of(tiny_model, dtype="float64"):
    policy = CausalLMPolicy(str(tiny_model), dtype=dtype)
    policy.load()
    return policy


def train(
    policy, rows=ROWS, updates=1, callbacks=(), lr=0.1, optimizer=torch.optim.SGD, precision="64-true", **options
):
    module = SupervisedFineTuning(
        policy,
        GenerationSampler(max_new_tokens=32),
        GSM8KTask(32),
        Objective("length", {"correctness": Constraint(at_least=0.9, role="monitor")}),
        optimizer=lambda parameters: optimizer(parameters, lr=lr),
        **{"max_grad_norm": None, **options},
    )
    trainer = quiet_trainer(*callbacks, precision=precision, max_steps=updates)
    trainer.fit(module, PromptDataModule(rows, len(rows)))
    return trainer


def losses_by_hand(policy, rows):
    """Of each row by itself, unpadded: -log p of its completion and the end token."""
    losses = []
    for row in rows:
        prompt = policy.tokenizer(row["prompt"]).input_ids
        answer = [*policy.tokenizer(row["completion"]).input_ids, policy.tokenizer.eos_token_id]
        logits = policy.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        losses.append(torch.nn.functional.cross_entropy(logits.double(), torch.tensor(answer), reduction="sum"))
    return torch.stack(losses)


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_one_update_by_hand(tiny_model, micro_batch_size):
    """The loss is the mean over completions of a sum over tokens, and the update its gradient step."""
    policy, expected = policy_of(tiny_model), policy_of(tiny_model)
    trainer = train(policy, micro_batch_size=micro_batch_size)
    losses = losses_by_hand(expected, ROWS)
    losses.mean().backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= 0.1 * parameter.grad
    assert float(trainer.callback_metrics["sft/loss"]) == pytest.approx(float(losses.mean()), rel=1e-6)
    torch.testing.assert_close(flat(policy), flat(expected), rtol=0, atol=1e-6)
    assert (flat(policy) - flat(policy_of(tiny_model))).abs().max() > 1e-3


def test_gradients_are_scaled_down(tiny_model):
    policy, before = policy_of(tiny_model), policy_of(tiny_model)
    train(policy, max_grad_norm=0.5)
    assert float((flat(policy) - flat(before)).norm()) == pytest.approx(0.1 * 0.5, rel=1e-4)


def test_it_learns_to_answer_as_demonstrated(tiny_model):
    """A learning outcome: after some updates the greedy answers are the completions."""
    policy = policy_of(tiny_model, "float32")
    train(policy, updates=150, lr=1e-2, optimizer=torch.optim.AdamW, precision="32-true")
    sampler = GenerationSampler(max_new_tokens=32, top_p=1e-6)
    prompts = PromptGroups(torch.arange(len(ROWS)), {"prompt": [row["prompt"] for row in ROWS]})
    rollouts = sampler.rollout(policy, prompts, 1, lambda *shape: torch.zeros(len(prompts), *shape))
    assert [texts[0] for texts in rollouts.info["text"]] == [row["completion"] for row in ROWS]


def test_the_directory_answers_identically(tiny_model, tmp_path):
    policy = policy_of(tiny_model, "float32")
    train(policy, callbacks=[SavePretrained(str(tmp_path / "deep" / "model"))], precision="32-true")
    again = policy_of(tmp_path / "deep" / "model", "float32")
    assert torch.equal(flat(again), flat(policy))


CHAT = [
    {"role": "assistant", "content": "I ask.", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
    {"role": "tool", "name": "add", "content": "7"},
    {"role": "assistant", "content": "It is 7."},
]
SCHEMAS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


def test_the_loss_of_a_conversation_is_of_the_assistants_tokens(tiny_model):
    """Tokens are those of the template's whole text, and own tokens are the texts of the assistant's turns."""
    policy = policy_of(tiny_model)
    asked = [{"role": "user", "content": "Three and four?"}]
    groups = PromptGroups(torch.arange(2), {"prompt": [asked, asked], "completion": [CHAT, CHAT[2:]]})
    rollouts = demonstration_rollouts(policy, groups, SCHEMAS)
    whole = policy.tokenizer.apply_chat_template([*asked, *CHAT], tools=SCHEMAS, tokenize=False)
    prompt = rollouts.inputs["prompt_ids"][0][rollouts.inputs["prompt_mask"][0]].tolist()
    assert policy.tokenizer.decode([*prompt, *rollouts.actions[0, 0].tolist()]) + "\n" == whole
    own = rollouts.mask[0, 0]
    pieces = torch.tensor_split(rollouts.actions[0, 0], (torch.diff(own.int()).nonzero()[:, 0] + 1).tolist())
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert [policy.tokenizer.decode(piece) for piece in pieces] == [
        f"I ask.{call}<|im_end|>", "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n", "It is 7.<|im_end|>",
    ]  # fmt: skip
    assert own[: len(pieces[0])].all() and policy.tokenizer.decode(rollouts.actions[1, 0][rollouts.mask[1, 0]]) == (
        "It is 7.<|im_end|>"
    )
    expected = torch.tensor([prompt + rollouts.actions[0, 0].tolist()])
    logits = policy.model(expected).logits[0, len(prompt) - 1 : -1].double()
    by_hand = torch.nn.functional.cross_entropy(logits, expected[0, len(prompt) :], reduction="none")
    examples = policy.examples(demonstration_rollouts(policy, groups, SCHEMAS))
    found = -torch.where(examples.mask, policy(examples).log_probs, 0)[0].sum()
    assert float(found) == pytest.approx(float(by_hand[own].sum()), rel=1e-6)


@pytest.mark.parametrize("wrong", [[], CHAT[:2], CHAT[1:], [CHAT[2], CHAT[2]]])
def test_conversations_that_do_not_alternate_are_named(tiny_model, wrong):
    groups = PromptGroups(torch.arange(1), {"prompt": [[{"role": "user", "content": "?"}]], "completion": [wrong]})
    with pytest.raises(UserError, match="roles"):
        demonstration_rollouts(policy_of(tiny_model), groups, SCHEMAS)


def test_a_users_reply_is_context(tiny_model):
    policy = policy_of(tiny_model)
    asked = [{"role": "user", "content": "Three and four?"}]
    talk = [CHAT[2], {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
    groups = PromptGroups(torch.arange(1), {"prompt": [asked], "completion": [talk]})
    rollouts = demonstration_rollouts(policy, groups)
    assert policy.tokenizer.decode(rollouts.actions[0, 0][rollouts.mask[0, 0]]) == "It is 7.<|im_end|>Yes.<|im_end|>"
    # A template that forgets earlier turns once the user replies cannot write the conversation turn by turn.
    written = "message['content'] }}"
    forgets = "(message['content'] if loop.last or message['role'] != 'assistant' else '') }}"
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace(written, forgets)
    with pytest.raises(UserError, match="earlier turns"):
        demonstration_rollouts(policy, groups)


def test_a_process_may_get_no_prompts(tiny_model):
    rollouts = demonstration_rollouts(
        policy_of(tiny_model), PromptGroups(torch.arange(0), {"prompt": [], "completion": []})
    )
    assert rollouts.actions.shape == rollouts.mask.shape == (0, 1, 0)


def test_a_prompt_may_be_as_long_as_there_is_room(tiny_model):
    policy = policy_of(tiny_model)
    groups = PromptGroups(torch.arange(1), {"prompt": ["Three and four?"], "completion": ["It is 7."]})
    policy.max_prompt_tokens = demonstration_rollouts(policy, groups).inputs["prompt_mask"].sum().item()
    demonstration_rollouts(policy, groups)
    policy.max_prompt_tokens -= 1
    with pytest.raises(UserError, match="prompt 0"):
        demonstration_rollouts(policy, groups)


def test_what_cannot_be_learned_from_is_named(tiny_model):
    with pytest.raises(UserError, match="'completion'"):
        demonstration_rollouts(policy_of(tiny_model), WordProblemsDataModule().source("val").groups(torch.arange(2)))
    long = {"prompt": ["ok", "long"], "completion": ["yes", "no " * 3000]}
    with pytest.raises(UserError, match="prompt 11"):
        demonstration_rollouts(policy_of(tiny_model), PromptGroups(torch.tensor([3, 11]), long))


SHORT = (
    f"{QUIET} --trainer.accelerator=cpu --threads=1 --trainer.val_check_interval=2 --data.val_prompts=4 "
    "--data.eval_prompts=4"
)


@pytest.mark.slow
def test_the_shipped_recipe_runs(folder):
    """Two updates of configs/gsm8k_sft.yaml; what it writes is a policy."""
    main(["fit", *shlex.split(f"-c configs/gsm8k_sft.yaml {SHORT} --data.prompts_per_update=4 --trainer.max_steps=2")])
    assert policy_of("models/word-problems") is not None


@pytest.mark.slow
def test_a_run_that_goes_on_ends_with_the_same_model(tmp_path, monkeypatch):
    """configs/navsim_sft.yaml: six updates at once, or three and three, bit for bit."""
    monkeypatch.chdir(tmp_path)
    updates, step = [], SupervisedFineTuning.training_step

    def counted(self, prompts, batch_idx):
        updates.append(self.global_step)
        step(self, prompts, batch_idx)

    monkeypatch.setattr(SupervisedFineTuning, "training_step", counted)
    short = "--data.train_prompts=24 --data.prompts_per_update=4 --model.lr_scheduler.total_steps=6"
    command = ["fit", *shlex.split(f"-c configs/navsim_sft.yaml {SHORT} {short}")]
    for folder, more in (("whole", ()), ("parts", ("--trainer.max_steps=3",)), ("parts", ("--ckpt_path=last",))):
        main([*command, f"--trainer.logger.name={folder}", f"--callbacks.save.directory={folder}", *more])
    assert updates == [*range(6), *range(6)]
    whole, parts = (load_file(f"{folder}/model.safetensors") for folder in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.slow
def test_the_drivers_recipe_is_four_runs_on_different_scenes(folder, monkeypatch):
    """The commands at the head of configs/navsim_sft.yaml, in little: each run goes on from earlier runs' ends."""
    head = (Path(__file__).parents[2] / "configs" / "navsim_sft.yaml").read_text().partition("threads:")[0]
    commands = re.findall(r"python -m lightning_cgrpo (fit .*)", head.replace("\\\n#", ""))
    (mean,) = re.findall(r"benchmarks.navsim.average (.*)", head)
    assert len(commands) == 4
    begun, step = [], SupervisedFineTuning.training_step

    def noted(self, prompts, batch_idx):
        weights = {name: value.clone() for name, value in self.policy.model.state_dict().items()}
        begun.append(({scene.name for scene in prompts.columns["scene"]}, weights))
        step(self, prompts, batch_idx)

    monkeypatch.setattr(SupervisedFineTuning, "training_step", noted)
    short = f"{SHORT} --data.prompts_per_update=2 --trainer.max_steps=1 --trainer.devices=1 --trainer.strategy=auto"
    ends = []
    for command, name in zip(commands, ("driver", "driver-2", "driver-3", "driver-4"), strict=True):
        if name == "driver-4":
            average(*map(Path, mean.split()))
        main([*shlex.split(command), *shlex.split(short)])
        written = VisionLanguagePolicy(f"models/{name}")
        written.load()
        ends.append(written.model.state_dict())
    scenes, starts = zip(*begun, strict=True)
    assert len(set().union(*scenes)) == sum(map(len, scenes))
    for start, end in ((starts[1], ends[0]), (starts[2], ends[1])):
        assert start.keys() == end.keys() and all(torch.equal(start[name], end[name]) for name in start)
    for name, weight in starts[3].items():
        torch.testing.assert_close(weight, (ends[1][name] + ends[2][name]) / 2)
    for start, end in zip(starts, ends, strict=True):
        assert any(not torch.equal(end[name], start[name]) for name in start)


def test_what_cannot_be_saved_is_noticed_before_training(tiny_model, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "adapter_config.json").write_text("{}")
    adapted = with_lora(tiny_model)
    adapted.load()
    adapted.name = "adapters of the model in the directory"
    for policy, target, reason in (
        (policy_of(tiny_model), tmp_path / "file", "is a file"),
        (torch.nn.Linear(1, 1), tmp_path / "new", "language model"),
        (policy_of(tiny_model), tiny_model, "another one than that of the model"),
        (policy_of(tiny_model), tmp_path / "adapters", "other kind"),
        (adapted, tiny_model, "other kind"),
    ):
        callback, module = SavePretrained(str(target)), SimpleNamespace(policy=policy)
        with pytest.raises(UserError, match=reason):
            callback.setup(None, module, "fit")
            callback.on_fit_start(None, module)
