"""Runs on one GPU, as far as a CPU can tell: what Lightning's default device reaches, and no tensor left behind."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu.waits import Waits
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.command_line import CommandLine
from lightning_cgrpo.cli.preparation import prepare
from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.grpo.constrained_advantages import as_signals
from lightning_cgrpo.modules import first_steps
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy, LoRA
from lightning_cgrpo.policies.computations import packed
from lightning_cgrpo.policies.shared_prefix.cast_products import cast_together
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy
from lightning_cgrpo.run.place import find_checkpoint
from lightning_cgrpo.samplers import replayed_step, transformers_engine
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.paged_rollout import PagedRollout
from lightning_cgrpo.samplers.replayed_step import ReplayedStep
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine
from lightning_cgrpo.tasks.driving.from_scratch import VisionFromScratch
from lightning_cgrpo.tasks.gsm8k.from_scratch import FromScratch
from navsim_score.signals import NavsimSignals
from tests.navsim_score import devkit_scenes
from tests.policies import tiny_families
from tests.pretended_device import DEVICE, DeviceError, Graph, pretending
from tests.quiet import QUIET
from tests.samplers.rolled import groups, noise_for
from tests.samplers.talks import Scripted, add, made, rolled

ROOT = Path(__file__).parents[1]


@pytest.fixture
def machine():
    with pretending() as machine:
        yield machine


@pytest.mark.parametrize(
    "refused",
    [
        lambda there, here: there + here,
        lambda there, here: here.add_(there),
        lambda there, here: here[0].add_(there[0]),
        lambda there, here: torch.cat([there, here]),
        lambda there, here: here[there.long()],
        lambda there, here: there.index_put((here.long(),), here),
        lambda there, here: torch.rand(3, generator=torch.Generator(), device=DEVICE),
    ],
)
def test_what_cuda_refuses_is_refused(refused, machine):
    with pytest.raises(DeviceError):
        refused(torch.ones(3, device=DEVICE), torch.ones(3))


def test_what_cuda_computes_is_computed(machine):
    there, here = torch.arange(3.0, device=DEVICE), torch.arange(3.0)
    assert (there + here[2]).tolist() == [2, 3, 4]
    assert there[here.long().flip(0)].tolist() == [2, 1, 0]
    assert torch.tensor([there[1], 5.0]).tolist() == [1, 5]
    there[1:].add_(1)
    here.copy_(there)
    assert here.tolist() == [0, 2, 3]
    leaf = torch.ones(2, 2, device=DEVICE, requires_grad=True)
    (leaf @ leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.device == DEVICE and leaf.grad.tolist() == [[4, 4], [4, 4]]


def test_waits_of_the_host_are_counted(machine):
    there = torch.arange(4.0, device=DEVICE)
    assert not machine.waits
    waits = {"read": lambda: float(there[0]), "shape": lambda: there[there > 1], "copy": there.cpu}
    for number, (kind, wait) in enumerate(waits.items(), 1):
        wait()
        assert machine.waits[kind, "elsewhere"] == 1 and machine.waits.total() == number
    with pytest.raises(TypeError, match="integer or bool"):
        on_host(there)
    there.to("cpu", non_blocking=True)
    (there * 2).sum()
    assert machine.waits.total() == len(waits)


def test_waits_name_the_line_that_asks(machine):
    here, there = torch.arange(2), torch.arange(2, device=DEVICE)
    mask, kept, numbers = on_host(torch.ones(3, device=DEVICE, dtype=torch.bool), here, there)
    assert machine.waits.total() == 1
    assert mask.tolist() == [True] * 3 and kept is here and numbers.tolist() == [0, 1]
    ((_, line),) = machine.waits
    assert line.partition(":")[0] == on_host.__module__


def test_constraints_read_columns_and_conditions_as_on_the_cpu(machine):
    """The host waits once for each column, and once for the check of indicators."""
    budget = {"column": "budget"}
    constraints = {
        "over": Constraint(at_most=0.1, signal="tokens", violated_above=budget, given="right"),
        "under": Constraint(at_most=0.1, signal="tokens", violated_below=budget),
        "right": Constraint(at_least=0.5, by={"size": [1, 2]}),
    }
    objective = Objective("right", constraints)

    def measured(device):
        def there(rows):
            return torch.tensor(rows).to(device, non_blocking=True)

        columns = {"budget": there([5.5, 29.5]), "size": there([1, 2])}
        signals = {"right": there([[1.0, 1, 0], [1, 0, 0]]), "tokens": there([[5, 6, 30], [29, 30, 30]])}
        made = objective.made(as_signals(signals), PromptGroups(there([0, 1]), columns))
        return [objective.components(made).values, *objective.counts(made).values()]

    expected = measured("cpu")
    assert [counts.tolist() for counts in expected[1:3]] == [[[1, 0], [2, 1]], [[1, 1], [3, 3]]]
    machine.waits.clear()
    found = measured(DEVICE)
    assert machine.waits.total() == 3, machine.waits.most_common()
    for one, other in zip(found, expected, strict=True):
        assert one.device == DEVICE and torch.equal(one.cpu(), other)


@pytest.mark.parametrize(
    "make", [lambda: CausalLMPolicy("packaged:word-problems"), lambda: VisionLanguagePolicy("packaged:driver")]
)
def test_shipped_models_are_loaded_and_share_prompts(make, machine):
    policy = make()
    with DEVICE:
        policy.load()
        reference = policy.reference()
    assert policy.shares_prompts
    for module in (policy, reference):
        assert {tensor.device for tensor in (*module.parameters(), *module.buffers())} == {DEVICE}


@pytest.mark.parametrize(
    "make", [FromScratch, VisionFromScratch, lambda: CausalLMPolicy("packaged:word-problems", lora=LoRA(rank=2))]
)
def test_weights_of_a_seed_are_the_same_on_every_device(make, machine):
    here, there = make(), make()
    here.load()
    with DEVICE:
        there.load()
    assert there.shares_prompts
    weights = dict(there.named_parameters())
    for name, weight in here.named_parameters():
        assert weights[name].device == DEVICE
        assert torch.equal(weights[name].cpu(), weight)
        assert weights[name].requires_grad == weight.requires_grad


def test_adapters_are_read(tmp_path, machine):
    policy = CausalLMPolicy("packaged:word-problems", lora=LoRA(rank=2))
    policy.load()
    policy.save_pretrained(tmp_path)
    again = CausalLMPolicy(str(tmp_path))
    with DEVICE:
        again.load()
    assert again.shares_prompts
    assert {parameter.device for parameter in again.parameters()} == {DEVICE}


# The host waits for masks, for grids, and for the tokens that images have positions among; in padded rows, twice more
# for transformers' mask.
@pytest.mark.parametrize(
    ("family", "share_prompts", "most"),
    [("qwen3_vl", True, 3), ("qwen3_vl", False, 5), ("internvl", True, 2), ("internvl", False, 4)],
)
def test_vision_families_train_and_generate(family, share_prompts, most, tmp_path, machine):
    policy = VisionLanguagePolicy(str(tiny_families.write(tmp_path, family)), share_prompts=share_prompts)
    image = np.zeros((32, 64, 3), dtype=np.uint8)
    prompts = [[{"role": "user", "content": [{"type": "image", "image": image}]}], "no image"]
    with DEVICE:
        policy.load()
        assert policy.shares_prompts == share_prompts
        inputs = policy.read_prompts(prompts)
        rollouts = TransformersEngine().generate(policy, inputs, 2, Sampling(3), torch.rand(2, 2, 3))
        examples = policy.examples(rollouts)
        machine.waits.clear()
        policy(examples).log_probs.sum().backward()
    assert 0 < machine.waits.total() <= most, machine.waits.most_common()
    towers = [parameter for tower in policy.family.towers for parameter in tower.parameters()]
    assert {parameter.grad.device for parameter in towers if parameter.grad is not None} == {DEVICE}


def test_casts_together_are_those_of_the_cpu(machine):
    found = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        layer, states = torch.nn.Linear(6, 4), torch.randn(3, 6)
        layer, states = layer.to(device), states.to(device)
        machine.waits.clear()
        with cast_together(layer, torch.bfloat16):
            made = layer(states)
        made.float().square().sum().backward()
        assert not machine.waits
        found.append([made.detach().cpu(), layer.weight.grad.cpu(), layer.bias.grad.cpu()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_graph_computes_at_its_replays(machine):
    state, made = torch.zeros(3, device=DEVICE), []

    def step():
        state.add_(1)
        made.append(state * 2)

    replay = Graph.captured(step)
    assert state.tolist() == [0, 0, 0]
    replay()
    replay()
    assert state.tolist() == [2, 2, 2] and made[0].tolist() == [4, 4, 4] and len(made) == 1
    with pytest.raises(DeviceError, match="capture cannot wait"):
        Graph.captured(lambda: state.sum().item())


@pytest.mark.parametrize("penalty", [1.0, 2.0])
def test_one_graph_generates_all_rollouts_and_the_host_waits_at_looks_alone(penalty, tmp_path, monkeypatch):
    """Weights change in place between rollouts."""
    make_tiny_model(tmp_path, hidden_size=32, layers=1, context_length=256)
    policy = CausalLMPolicy(str(tmp_path), dtype="float64")
    policy.load()
    policy.stop_tokens = tuple(sorted({*policy.stop_tokens, *range(40, 60)}))
    texts = ["Tom", "How many apples are left?", "Anna reads 12 pages every day.", "A"]
    inputs, sampling = policy.read_prompts(texts), Sampling(24, batch_size=4, repetition_penalty=penalty)
    weights = {name: weight.clone() for name, weight in policy.state_dict().items()}

    def generated():
        policy.load_state_dict(weights)
        engine, made = TransformersEngine(), []
        for seed in (0, 1):
            draws = noise_for(groups(texts), seed)(2, 24)
            with engine.session(policy):
                rollouts = engine.generate(policy, dict(inputs), 2, sampling, draws)
            made.append((rollouts.actions, rollouts.mask, rollouts.sampling_log_probs))
            with torch.no_grad():
                for weight in policy.parameters():
                    weight.mul_(1.1)
        return made, engine

    expected, _ = generated()
    looks, launched, look, replayed = [], [], PagedRollout._look_for_ended, ReplayedStep.__call__

    def noted(step):
        before = machine.operations
        replayed(step)
        launched.append(machine.operations - before)

    monkeypatch.setattr(PagedRollout, "_look_for_ended", lambda rollout: (looks.append(1), look(rollout)))
    monkeypatch.setattr(ReplayedStep, "__call__", noted)
    monkeypatch.setattr(transformers_engine, "IN_PAGES", {"pretended"})
    with pretending() as machine:
        policy = policy.to(DEVICE)
        monkeypatch.setitem(replayed_step.CAPTURE, "pretended", Graph.captured)
        machine.waits.clear()
        looks.clear()
        found, engine = generated()
        assert engine._step.replayed.captures == 1
        first, captured, *others = launched
        assert first > 20 and captured >= first and others == [0] * (8 * len(looks) - 2)
        waits = [count for (_, line), count in machine.waits.items() if line != "elsewhere"]  # in this test
        assert sum(waits) == len(looks) > 6, machine.waits.most_common()
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one[0].cpu(), other[0]) and torch.equal(one[1].cpu(), other[1])
            if penalty != 1:
                torch.testing.assert_close(one[2].cpu(), other[2])
    assert len(torch.cat([mask.sum(-1) for _, mask, _ in expected]).unique()) > 4


def test_a_conversation_reports_the_log_probs_of_the_cpu(machine):
    """They weigh the loss where the sampler draws from other probabilities, as with a repetition penalty."""
    policy = made(short_turns=True)
    expected = rolled(policy, Scripted(60, [add], max_turns=3, repetition_penalty=1.2))[1]
    policy.to(DEVICE)
    found = rolled(policy, Scripted(60, [add], max_turns=3, repetition_penalty=1.2))[1]
    assert torch.equal(found.actions.cpu(), expected.actions)
    assert expected.sampling_log_probs.frac().abs().max() > 0.1
    torch.testing.assert_close(found.sampling_log_probs.cpu(), expected.sampling_log_probs)


GRPO = "--callbacks.initial_rates.batches=1", "--callbacks.progress=null", "--model.group_size=4"
WORDS = *GRPO, "--data.train_prompts=6", "--callbacks.initial_rates=null"
SCENES = "--data.train_prompts=6", "--data.val_prompts=2"
ON_THE_DEVICE = "--trainer.accelerator=pretended", "--trainer.strategy=pretended"


@pytest.mark.parametrize(
    ("config", "options", "most", "graphs"),
    [
        ("gridworld", GRPO, 42, 0),  # of these 20 by steps of the environment
        # A rollout of 60 tokens looks 8 times; three passes wait once each. One graph lets the host wait no more often.
        ("gsm8k", WORDS, 34, 0),
        ("gsm8k", WORDS, 34, 1),
        ("gsm8k_sft", ["--callbacks.save=null"], None, 0),
        # Each pass with images also reads their grids.
        ("navsim", [*GRPO, *SCENES, "--data.test_prompts=2"], 43, 0),
        ("navsim_sft", [*SCENES, "--callbacks.save=null"], None, 0),
    ],
)
def test_an_update_of_a_shipped_configuration_is_that_of_the_cpu(config, options, most, graphs, folder, monkeypatch):
    """And the host waits for the device no more often than the budget allows."""
    # The first two steps of a run are looked at, for which the host waits.
    monkeypatch.setattr(first_steps, "STEPS", 0)
    (folder / "configs").symlink_to(ROOT / "configs")
    expected = update(config, *options)
    captured = []
    if graphs:
        capture = lambda step: (captured.append(1), Graph.captured(step))[1]  # noqa: E731
        monkeypatch.setattr(transformers_engine, "IN_PAGES", {"pretended"})
        monkeypatch.setitem(replayed_step.CAPTURE, "pretended", capture)
    else:
        monkeypatch.setattr(packed, "FEWER_KERNELS", {"pretended"})
    with pretending() as machine:
        monkeypatch.setattr(Waits, "pretended", machine.waits)
        watch = "--trainer.callbacks=benchmarks.gpu.waits.Waits"
        found = update(config, *options, *ON_THE_DEVICE, watch)
    largest = max(float(moment.abs().max()) for moment in expected)
    assert largest > 1e-6
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * largest)
    assert len(captured) == graphs
    assert most is None or 0 < Waits.lines.total() <= most, Waits.lines.most_common()


def update(config, *options):
    """Adam's first moments after the command line made one update: the gradients, scaled."""
    short = f"{QUIET} --trainer.max_steps=1 --trainer.limit_val_batches=0 --data.prompts_per_update=3"
    settings, flags = read_arguments("fit", ["-c", f"configs/{config}.yaml", *short.split(), *options])
    prepare("fit", settings)
    line = CommandLine("fit", settings, flags)
    assert line.trainer.global_step == 1
    assert line.model.policy.shares_prompts or not isinstance(line.model.policy, CausalLMPolicy)
    (optimizer,) = line.trainer.optimizers
    return [state["exp_avg"] for state in optimizer.state.values()]


def test_a_run_of_the_cpu_resumes_on_the_device(folder):
    """What a checkpoint holds is read on the CPU, before the module is on the device."""
    short = ["-c", str(ROOT / "configs/gridworld.yaml"), *GRPO, "--data.prompts_per_update=3", "--threads=1"]
    short += ["--trainer.limit_val_batches=0", "--trainer.enable_progress_bar=false", "--callbacks.pictures=null"]
    short += ["--model.sampler.environment.max_steps=5", "--model.redraws=1", "--trainer.logger.name=run"]
    short += ["--model.estimator=ScalarizedAdvantages", "--model.estimator.scale=pooled"]

    def fit(updates, *more):
        settings, flags = read_arguments("fit", [*short, *more, f"--trainer.max_steps={updates}"])
        prepare("fit", settings, find_checkpoint("fit", settings))
        assert CommandLine("fit", settings, flags).trainer.global_step == updates

    fit(2)
    with pretending():
        fit(20, "--ckpt_path=last", *ON_THE_DEVICE)


def test_stored_scenes_are_scored_on_the_candidates_device(tmp_path, machine):
    """The store is in the host's memory, and everything after it on the device of the candidates."""
    made = devkit_scenes.scenes()
    devkit_scenes.store_of(tmp_path, made)
    signals, tokens = NavsimSignals(tmp_path), [*made, "late"]
    poses = devkit_scenes.candidates().expand(len(tokens), -1, -1, -1)
    previous = [None] * len(made) + ["touching"]
    here, there = signals(poses, tokens, previous), signals(poses.to(DEVICE), tokens, previous)
    assert there.valid.device == torch.empty(0, device=DEVICE).device and there["EC"][-1].isfinite().all()
    for name, value in here.items():
        assert torch.allclose(there[name].cpu(), value, rtol=0, atol=1e-12, equal_nan=True), name
