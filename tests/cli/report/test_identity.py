"""Two trainings that differ have two names, two identities and two rows of a report, and make a study."""

import pytest

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.report.methods import collect
from lightning_cgrpo.cli.study.state import check_distinct
from lightning_cgrpo.cli.study.study import Run
from lightning_cgrpo.run.identity import identity_of, key_of

PAIRS = {
    "prompts that training loses": (["-c", "examples/your_problem/your_problem.yaml"], "--data.val_prompts=40"),
    "a seed of scenes": (["-c", "configs/navsim.yaml"], "--data.scenes.seed=21"),
    "a seed of adapters": (
        ["-c", "configs/gsm8k.yaml", "--model.policy.lora={rank: 4, seed: 1}"],
        "--model.policy.lora.seed=2",
    ),
}
"""Arguments of a run, and one more that changes what it learns."""


@pytest.mark.parametrize(("given", "change"), PAIRS.values(), ids=PAIRS)
def test_two_trainings_are_two(given, change, make_run, tmp_path, monkeypatch):
    pair = [given, [*given, change]]
    configs = [read_arguments("fit", arguments)[0] for arguments in pair]
    assert len({config["trainer"]["logger"]["init_args"]["name"] for config in configs}) == 2
    assert len({key_of(identity_of(config)) for config in configs}) == 2

    for number, config in enumerate(configs):
        make_run(f"runs/{number}", **identity_of(config))
    [methods] = collect([(None, tmp_path / "runs")]).values()
    assert len(methods) == 2

    monkeypatch.setattr("lightning_cgrpo.cli.study.state.weights_fingerprint", str)
    check_distinct([Run(f"variant-{number}", 0, tuple(arguments), "runs/s") for number, arguments in enumerate(pair)])
