"""One copy of the network over two processes learns what a single process learns, and leaves what others can read."""

import importlib.util
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule

from lightning_cgrpo import CategoricalMLP, CausalLMPolicy
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.sharding import (
    count_turns,
    equal_passes,
    fitting_processes,
    free_in_groups,
    full_weights,
    in_turn,
    shard,
    unsharded,
)
from lightning_cgrpo.run.checkpoints.sharded import read_weights
from tests.grids import grid_module
from tests.policies.small_policies import loaded

WORKER = Path(__file__).with_name("sharding_worker.py")
EXACT = ("whole_model", "adapters", "vision", "supervised")
SCENARIOS = (*EXACT, "half_adapters", "mixed", "mixed_vision", "served", "checkpoints")


@pytest.fixture(scope="module")
def worker():
    spec = importlib.util.spec_from_file_location("sharding_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(worker, tmp_path_factory):
    return worker.prepare(tmp_path_factory.mktemp("sharding"))


@pytest.fixture(scope="module")
def alone(worker, folder):
    """What a single process, this one, leaves of a scenario."""
    return cache(lambda name: worker.SCENARIOS[name](folder, "auto"))


@pytest.fixture(scope="module")
def pair(launch, folder):
    """What each of two processes leaves of a scenario."""

    @cache
    def run(strategy, names):
        launch(2, WORKER, folder, strategy, *names)
        return {
            name: [torch.load(folder / f"{name}_{strategy}_2_{rank}.pt", weights_only=True) for rank in range(2)]
            for name in names
        }

    return run


@pytest.fixture(scope="module")
def sharded(pair):
    return pair("fsdp2", SCENARIOS)


def assert_same(ranks, alone):
    """The ranks equal bit by bit, and all that one process has to float64's rounding."""
    kinds = alone.keys() & {"policy", "reference", "multipliers"}
    for kind in kinds:
        assert torch.equal(ranks[0][kind], ranks[1][kind]), kind
        torch.testing.assert_close(ranks[0][kind], alone[kind], rtol=0, atol=1e-12)
    assert kinds >= {"policy"}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("strategy", "scenarios"), [("fsdp2", SCENARIOS), ("ddp", EXACT)], ids=["shards", "copies"])
def test_learns_the_same(pair, alone, strategy, scenarios, name):
    assert_same(pair(strategy, scenarios)[name], alone(name))


@pytest.mark.slow
def test_every_process_holds_its_share_alone(sharded):
    for rank in sharded["whole_model"] + sharded["vision"]:
        assert rank["shares"] == {"policy": pytest.approx(0.5, abs=0.02), "reference": pytest.approx(0.5, abs=0.02)}


@pytest.mark.slow
def test_weights_are_read_at_once_where_memory_holds_them(launch, folder):
    """After the first process, whose memory is measured; an error in one's turn ends all, and leaves nobody waiting."""
    launch(3, WORKER, folder, "fsdp2", "turns", "turns_without_memory")
    for name, at_once in (("turns", True), ("turns_without_memory", False)):
        ranks = [torch.load(folder / f"{name}_fsdp2_3_{rank}.pt", weights_only=True) for rank in range(3)]
        first, second, third = sorted(rank["times"] for rank in ranks)
        assert ranks[0]["times"] == first and first[1] <= second[0]
        assert (third[0] < second[1]) == at_once
        assert all("nothing" in rank["error"] for rank in ranks)


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_below_the_limits_of_all_groups(version, tmp_path):
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    groups = "3:cpu,cpuacct:/\n4:memory:/job/step\n0::/" if version == 1 else "0::/job/step"
    job = (tmp_path / "memory" if version == 1 else tmp_path) / "job"
    (job / "step").mkdir(parents=True)
    for folder, sizes in ((job, ("1000", "300")), (job / "step", ("max" if version == 2 else str(2**63), "200"))):
        for name, size in zip((limit, used), sizes, strict=True):
            (folder / name).write_text(size + "\n")
    assert min(free_in_groups(groups, tmp_path)) == 700


def test_processes_of_a_turn():
    assert fitting_processes(1) == 1 <= fitting_processes(10**9) < 10**9
    assert [count_turns(7, at_once) for at_once in (1, 3, 7)] == [7, 3, 1]


@pytest.mark.slow
def test_gathers_each_layer_once_for_a_rollout(sharded):
    """Two decoder layers and what is in none; with two layers of a vision tower. Not once for each token."""
    for name, parts in (("whole_model", 3), ("vision", 5)):
        for rank in sharded[name]:
            assert len(rank["gathers"]) >= 3 and set(rank["gathers"]) == {parts}


@pytest.mark.slow
def test_beside_a_server_only_a_push_gathers(sharded):
    """The server gets the whole weights, and answers while each process holds its shard."""
    first, second = sharded["served"]
    assert first["gathers"] == second["gathers"] == [3, 0, 3, 0] and first["pushes"] == 2
    assert first["gap"] < 1e-4 and torch.equal(first["policy"], second["policy"])


@pytest.mark.slow
def test_adapters_on_a_bfloat16_model(sharded, alone):
    one = alone("half_adapters")
    for rank in sharded["half_adapters"]:
        assert rank["dtypes"] == one["dtypes"] == ["torch.bfloat16", "torch.float32"]
        torch.testing.assert_close(rank["policy"], one["policy"], rtol=0, atol=1e-3)


@pytest.mark.slow
def test_mixed_precision_gathers_bfloat16_and_keeps_float32(sharded, alone):
    one = alone("mixed")
    for rank in sharded["mixed"]:
        assert rank["dtype"] == "torch.float32" and rank["dtype when whole"] == "torch.bfloat16"
        ours, theirs = rank["policy"] - rank["before"], one["policy"] - one["before"]
        assert torch.cosine_similarity(ours, theirs, 0) > 0.999
        assert float(ours.norm()) == pytest.approx(float(theirs.norm()), rel=0.02)


@pytest.mark.slow
def test_mixed_precision_with_images(sharded):
    for rank in sharded["mixed_vision"]:
        assert rank["policy"].dtype == torch.float32 and rank["policy"].isfinite().all()
        assert not torch.equal(rank["policy"], rank["reference"])


def small_module(strategy):
    module = LightningModule()
    module.policy = CategoricalMLP(3, 2)
    module._trainer = SimpleNamespace(strategy=strategy, precision="32-true")
    return module


def test_without_sharding_nothing_changes():
    module = small_module(SingleDeviceStrategy())
    policy = module.policy
    shard(module)
    assert module.policy is policy and full_weights(policy) is None
    with unsharded(policy):
        assert module.policy is policy


def test_a_process_with_fewer_pieces_adds_empty_ones(monkeypatch):
    monkeypatch.setattr("lightning_cgrpo.policies.sharding.gather_counts", lambda count, device: [count, 3])
    network, pieces = torch.nn.Linear(1, 1), [torch.arange(2)]
    assert equal_passes(network, pieces, torch.device("cpu")) is pieces
    network.__class__ = type("Sharded", (FSDPModule, torch.nn.Linear), {})  # as fully_shard does
    passes = equal_passes(network, pieces, torch.device("cpu"))
    assert [rows.tolist() for rows in passes] == [[0, 1], [], []]


def test_an_empty_piece_has_a_pass_and_no_gradient():
    module = grid_module()
    module.policy.__class__ = type("Sharded", (FSDPModule, CategoricalMLP), {})
    seen = []
    loss = module.manual_optimization._no_loss(lambda examples: seen.append(len(examples)))
    loss.backward()
    assert seen == [1] and loss == 0
    assert all(parameter.grad.eq(0).all() for parameter in module.policy.parameters())


def test_matrices_in_parts_are_refused():
    strategy = ModelParallelStrategy()
    strategy._device_mesh = {"tensor_parallel": SimpleNamespace(size=lambda: 2)}
    with pytest.raises(UserError, match="tensor_parallel_size 1, but got 2"):
        shard(small_module(strategy))


def test_the_first_version_of_fsdp_is_refused_by_the_module():
    with pytest.raises(UserError, match="fsdp2"), in_turn(small_module(FSDPStrategy())):
        pass


@pytest.mark.parametrize("kind", ["mlp", "language"])
def test_a_placeholder_is_a_unit_of_the_policy(folder, kind):
    policy = CategoricalMLP(3, 2) if kind == "mlp" else CausalLMPolicy(str(folder / "model"))
    policy.load()
    if kind == "language":
        policy.stop_tokens = policy.stop_tokens[:1]  # many models have one
    output = policy(policy.placeholder())
    assert output.log_probs.numel() == 1 and bool(output.log_probs.isfinite().all())
    (output.log_probs.sum() + output.entropy.sum()).backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sharded", "consolidated"])
def test_goes_on_as_if_it_had_not_stopped(sharded, alone, folder, kind):
    ranks = [rank[kind] for rank in sharded["checkpoints"]]
    assert_same(ranks, alone("checkpoints")[kind])
    for rank in sharded["checkpoints"]:
        for part in ("policy", "reference"):
            assert torch.equal(rank[f"{kind} resumed"][part], rank[kind][part])
        assert torch.equal(rank[f"{kind} resumed"]["multipliers"], rank[kind]["multipliers"][2:])
    assert (folder / "2" / kind / "last.ckpt").is_dir() == (kind == "sharded")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "fsdp2"])
def test_goes_on_with_another_number_of_processes(launch, sharded, alone, folder, strategy):
    expected = alone("checkpoints")["consolidated resumed"]
    launch(1, WORKER, folder, strategy, "resumed")
    left = torch.load(folder / f"resumed_{strategy}_1_0.pt", weights_only=True)
    assert set(left) == {"consolidated"} | ({"sharded", "single"} if strategy == "fsdp2" else set())
    for one in left.values():
        for part in ("policy", "reference", "multipliers"):
            torch.testing.assert_close(one[part], expected[part], rtol=0, atol=1e-12)


def policy_weights(checkpoint):
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    return {name[7:]: value for name, value in state.items() if name.startswith("policy.")}


@pytest.mark.slow
def test_weights_are_read_out_of_a_sharded_checkpoint(sharded, folder):
    read = read_weights(folder / "2" / "sharded" / "last.ckpt", "state_dict.policy.")
    expected = policy_weights(folder / "2" / "consolidated" / "last.ckpt")
    assert read.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in read.items())


@pytest.mark.slow
def test_saves_a_directory_that_transformers_answers_alike_from(sharded, folder):
    """The weights of the last checkpoint, and the same answers as the policy's."""
    saved = folder / "2" / "saved_sharded"
    model = transformers.AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float64)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(saved)
    policy = loaded(folder / "model", dtype="float64")
    policy.load_state_dict(policy_weights(folder / "2" / "consolidated" / "last.ckpt"))
    assert all(torch.equal(value, policy.model.state_dict()[name]) for name, value in model.state_dict().items())
    inputs = tokenizer("Count to 3.", return_tensors="pt")
    answers = [m.generate(**inputs, max_new_tokens=8, do_sample=False) for m in (model, policy.model)]
    assert torch.equal(*answers) and answers[0].shape[1] > inputs["input_ids"].shape[1]
    assert load_file(saved / "model.safetensors").keys() == load_file(folder / "model" / "model.safetensors").keys()
    assert json.loads((saved / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]


@pytest.mark.slow
def test_saves_adapters_alone(sharded, alone, folder):
    alone("adapters")
    ours, theirs = (load_file(folder / f"adapters_{s}" / "adapter_model.safetensors") for s in ("fsdp2_2", "auto_1"))
    assert len(ours) > 10
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    policy = loaded(folder / "adapters_fsdp2_2", dtype="float64")
    trained = torch.cat([p.flatten() for p in policy.parameters() if p.requires_grad])
    assert trained.abs().sum() > 0
