"""Mistakes of a new user, and how the tool answers each.

An answer is good if it names the setting to change in at most three lines of a terminal: an error with an exit status
other than 0, or a warning of a run that rightly continues. Scripts end with Python's traceback; the error's own lines
count.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightning_cgrpo.__main__ import run as run_command
from navsim_score.__main__ import main as run_score
from tests.forked import forked, run_script

ROOT = Path(__file__).parents[2]
TIMEOUT = 120.0
COLUMNS = 200
LINES = 3
SHOWN = 15

CLI = ("-m", "lightning_cgrpo")
SCORE = ("-m", "navsim_score", "score", "--scenes", ".", "--trajectories", ".")


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Args:
        name: what the user did.
        command: the arguments of python.
        names: a regular expression for the setting that a good answer names.
        files: texts by name, written into the folder where the command runs.
        before: commands that make a run or a model first, and succeed.
        env: environment variables beside the tester's own.
    """

    name: str
    command: Sequence[str]
    names: str
    files: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[Sequence[str]] = ()
    env: Mapping[str, str] = field(default_factory=dict)


# Without pictures, whose first one costs matplotlib's import.
GRID = [
    "-c", "configs/gridworld.yaml", "--trainer.max_steps=2", "--trainer.limit_val_batches=0",
    "--data.prompts_per_update=2", "--model.group_size=2", "--model.sampler.environment.max_steps=5",
    "--callbacks.initial_rates=null", "--callbacks.pictures=null",
]  # fmt: skip
NAMED = "--trainer.logger.name=gridworld"
SAME = [NAMED, "--trainer.logger.version=0"]
WORDS = [
    "-c", "configs/gsm8k.yaml", "--trainer.max_steps=2", "--trainer.limit_val_batches=0",
    "--data.prompts_per_update=2", "--data.train_prompts=8", "--model.group_size=2",
    "--model.sampler.max_new_tokens=16", "--callbacks.initial_rates=null", "--callbacks.samples=null",
]  # fmt: skip
MINE = ("-c", "mine.yaml")

OWN_YAML = """\
trainer: {accelerator: cpu, devices: 1, max_steps: 20}
model:
  class_path: lightning_cgrpo.ConstrainedGRPO
  init_args:
    policy: {class_path: lightning_cgrpo.CausalLMPolicy, init_args: {model: packaged:word-problems}}
    sampler: {class_path: lightning_cgrpo.GenerationSampler, init_args: {max_new_tokens: 8}}
    task:
      class_path: lightning_cgrpo.FunctionTask
      init_args: {signals: {brief: my_rewards.brief, says_it: my_rewards.says_it}}
    objective: {reward: brief, constraints: {says_it: {at_least: 0.9}}}
    optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1.0e-4}}
    group_size: 4
data: {class_path: PromptDataModule, init_args: {path: prompts.jsonl, prompts_per_update: 2}}
callbacks:
  multipliers: {class_path: LagrangianCallback, init_args: {controller: {class_path: SoftmaxAdam}}}
"""
BRIEF = """\
def brief(completions, **columns):
    return [-len(text) / 100 for text in completions]
"""
SAYS_IT = """\
def says_it(completions, wanted, **columns):
    return [float(word in text) for text, word in zip(completions, wanted)]
"""
PROMPTS = '{"prompt": "Say yes.", "wanted": "yes"}\n{"prompt": "Say no.", "wanted": "no"}\n' * 2
OWN = {"mine.yaml": OWN_YAML, "my_rewards.py": BRIEF + SAYS_IT, "prompts.jsonl": PROMPTS}

TASK, DATA = "FunctionTask({'brief': brief, 'says_it': says_it})", "PromptDataModule('prompts.jsonl', 2)"
SCRIPT = f"""\
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from lightning_cgrpo import *
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import GridworldDataModule, PromptDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.tasks.task import Task
from lightning_cgrpo.tasks.gridworld import Gridworld, GridworldTask
from my_rewards import brief, says_it

class Answers(Task):
    signals = {{"brief": "number", "says_it": "indicator"}}

    def score(self, prompts, rollouts):
        return {{"brief": -rollouts.lengths.float(), "says_it": (rollouts.lengths < 4).float()}}

policy = CausalLMPolicy("packaged:word-problems")
module = ConstrainedGRPO(
    policy=policy,
    sampler=GenerationSampler(max_new_tokens=8),
    task={TASK},
    objective=Objective("brief", {{"says_it": Constraint(at_least=0.9)}}),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    group_size=4,
)
trainer = Trainer(max_steps=2, accelerator="cpu", callbacks=[LagrangianCallback(SoftmaxAdam())])
trainer.fit(module, {DATA})
"""
GRIDWORLD = {
    'CausalLMPolicy("packaged:word-problems")': "CategoricalMLP(observation_size=30, actions=5)",
    "GenerationSampler(max_new_tokens=8)": "EnvironmentSampler(Gridworld(max_steps=5))",
    TASK: "GridworldTask()",
    '"brief", {"says_it": Constraint(at_least=0.9)}': '"goal", {"lava": Constraint(at_most=0.01)}',
    DATA: "GridworldDataModule()",
}


def fit(*arguments: str) -> list[str]:
    return [*CLI, "fit", *arguments]


def script(changes: Mapping[str, str]) -> dict[str, str]:
    """The tour's script with some parts replaced, and the files that it reads."""
    text = SCRIPT
    for old, new in changes.items():
        if old not in text:
            raise ValueError(f"Expected the script to contain {old!r}, but it does not.")
        text = text.replace(old, new)
    return {**OWN, "train.py": text}


MAKE_SCENE = """\
import json
import math

from driving_scenes.scene_file import write_scene
from driving_scenes.generator import GeneratedScenes

scene = GeneratedScenes(seed=0).scenes("test")[104]  # a right turn
write_scene(scene, "turn.scene.json")
poses = [[x, y, math.degrees(yaw)] for x, y, yaw in scene.human.tolist()]
with open("turn.trajs.json", "w") as file:
    json.dump({"trajectories": [{"tag": "mine", "poses": poses}]}, file)
"""
SLURM = {f"SLURM_{name}": value for name, value in (
    ("JOB_ID", "1"), ("JOB_NAME", "train"), ("JOB_NODELIST", "localhost"), ("NTASKS", "2"), ("NTASKS_PER_NODE", "2"),
    ("PROCID", "0"), ("LOCALID", "0"), ("NODEID", "0"),
)}  # fmt: skip
# The environment of the first process of torchrun --nproc_per_node=2, because torchrun's own report of a failure is
# longer than any answer.
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "1", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29677",
}  # fmt: skip


def objective(text: str) -> dict[str, str]:
    """An own file that changes the objective."""
    return {"mine.yaml": f"model: {{objective: {text}}}\n"}


MISTAKES: list[Mistake] = [
    # The command line
    Mistake("config_without_c", fit("configs/gridworld.yaml"), r"-c (FILE|configs)"),
    Mistake("config_of_ones_own_without_c", fit("mine.yaml"), "Did you mean '-c mine.yaml'"),
    Mistake("study_of_a_configuration", [*CLI, "study", "configs/gridworld.yaml"], "fit -c configs/gridworld.yaml"),
    Mistake("copy_of_a_misspelled_name", [*CLI, "configs", "--copy", "grid"], "Did you mean 'gridworld'"),
    Mistake("wandb_without_a_key", fit(*GRID, "--trainer.logger=WandbLogger"), "wandb login.*WANDB_MODE=offline",
            env={"WANDB_API_KEY": "", "HOME": "/nonexistent", "WANDB_MODE": "online"}),
    Mistake("gpu_without_a_gpu", fit(*GRID, "--trainer.accelerator=gpu"), "accelerator",
            env={"CUDA_VISIBLE_DEVICES": "-1"}),
    Mistake("validate_every_quarter_epoch", fit(*GRID, "--trainer.val_check_interval=0.25"), "val_check_interval"),
    Mistake("two_nodes_on_one_machine", fit(*GRID, "--trainer.num_nodes=2"), "num_nodes"),
    Mistake("no_updates", fit(*GRID, "--trainer.max_steps=0"), "max_steps.* -1 for no limit"),
    Mistake("seed_as_a_word", fit(*GRID, "--seed_everything=mine"), "seed_everything.*from 0"),
    Mistake("no_threads", fit(*GRID, "--threads=0"), "threads to be a whole number"),
    Mistake("precision_of_another_library", fit(*GRID, "--trainer.precision=fp16"), "trainer.precision.*16-mixed"),
    Mistake("logger_in_lower_case", fit(*GRID, "--trainer.logger=wandb"), "Did you mean 'WandbLogger'"),
    # Names of TRL and of other tools
    Mistake("learning_rate_of_trl", fit(*GRID, "--model.learning_rate=1e-5"), "model.optimizer.lr"),
    Mistake("beta_of_trl", fit(*GRID, "--model.optimization.beta=0.04"), "kl_weight"),
    Mistake("num_generations_of_trl", fit(*GRID, "--model.num_generations=8"), "model.group_size"),
    Mistake("temperature_of_the_sampler", fit(*WORDS, "--model.sampler.temperature=0.7"), "model.policy.temperature"),
    # Own YAML
    Mistake("file_that_was_not_saved", fit(*GRID, *MINE), "mine.yaml to hold settings", {"mine.yaml": ""}),
    Mistake("no_space_after_a_colon", fit(*GRID, *MINE), "space after the colon",
            {"mine.yaml": "model:\n  group_size:4\n"}),
    Mistake("rewards_as_a_list", fit(*GRID, *MINE), "reward", objective("{reward: [goal, battery]}")),
    Mistake("limits_in_a_column_that_is_missing", fit(*WORDS, *MINE), "column of the train data.*'budget'",
            objective("{constraints: {long: {signal: tokens, violated_above: {column: budget}, at_most: 0.05}}}")),
    Mistake("callbacks_as_a_list", fit(*GRID, *MINE, "--callbacks.pictures=null"), "callbacks.*(name|mapping|dict)",
            {"mine.yaml": "callbacks: [{class_path: lightning.pytorch.callbacks.LearningRateMonitor}]"}),
    Mistake("cosine_shorter_than_the_run", fit(*GRID, *MINE, "--trainer.max_steps=6"), "T_max",
            {"mine.yaml": "model: {lr_scheduler: {class_path: torch.optim.lr_scheduler.CosineAnnealingLR, "
                          "init_args: {T_max: 2}}}"}),
    Mistake("observation_size_of_another_task", fit(*GRID, "--model.policy.observation_size=25"), "observation_size"),
    Mistake("functions_as_a_list", fit(*MINE, "--model.task.signals=[my_rewards.brief]"),
            "signals: Expected a mapping by name", OWN),
    Mistake("function_by_its_file", fit(*MINE, "--model.task.signals.brief=my_rewards.py:brief"),
            "try my_rewards.brief", OWN),
    # Data files
    Mistake("constraint_with_a_key_twice",
            fit(*GRID, "--model.objective.constraints.lava={at_most: 0.1, at_most: 0.2}"), "constraints.lava.*at_most"),
    Mistake("record_without_its_column", fit(*MINE), "(column|field|record).*wanted",
            {**OWN, "prompts.jsonl": PROMPTS + '{"prompt": "Say no.", "want": "no"}\n' * 4}),
    Mistake("fewer_prompts_than_an_update", fit(*MINE, "--data.prompts_per_update=8"), "prompts_per_update", OWN),
    Mistake("validation_on_training_prompts", fit(*MINE, "--data.val_path=prompts.jsonl"), r"data\.val_path", OWN),
    # Models
    Mistake("lora_of_no_layer", fit(*WORDS, "--model.policy.lora.target_modules=[q_projj]"), "target_modules"),
    Mistake("lora_without_rank", fit(*WORDS, "--model.policy.lora.rank=0"), "lora.rank.*at least 1"),
    # Reward functions
    Mistake("reward_with_another_parameter", fit(*MINE), "brief.*texts|texts.*brief",
            {**OWN, "my_rewards.py": "def brief(texts):\n    return [0.0 for text in texts]\n" + SAYS_IT}),
    Mistake("reward_that_never_varies", fit(*MINE), "'brief'",
            {**OWN, "my_rewards.py": BRIEF.replace("-len(text) / 100", 'float("#### " in text)') + SAYS_IT}),
    Mistake("task_with_a_shorter_limit", fit(*WORDS, "--model.task.max_completion_tokens=8"), "max_completion_tokens"),
    Mistake("own_task_returns_tensors", ["train.py"], "Signal", script({TASK: "Answers()"})),
    # Python
    Mistake("optimizer_instead_of_its_maker", ["train.py"], "optimizer.*(parameters|function|callable)",
            script({**GRIDWORLD, "lambda parameters: torch.optim.AdamW(parameters":
                    "torch.optim.AdamW(policy.parameters()"})),
    Mistake("constraint_as_a_dict", ["train.py"], r"Constraint\(",
            script({"Constraint(at_least=0.9)": '{"at_least": 0.9}'})),
    Mistake("plain_data_loader", ["train.py"], "DataModule|PromptGroups",
            script({DATA: 'DataLoader([{"prompt": "Say yes.", "wanted": "yes"}] * 8, batch_size=4)'})),
    Mistake("class_of_a_task", ["train.py"], r"`task`.*try Answers\(\.\.\.\)", script({TASK: "Answers"})),
    Mistake("name_of_a_model_as_policy", ["train.py"], r"`policy`.*try CausalLMPolicy\(",
            script({'CausalLMPolicy("packaged:word-problems")': '"packaged:word-problems"'})),
    Mistake("reward_in_a_list", ["train.py"], "reward to be a signal's name",
            script({'Objective("brief", ': 'Objective(["brief"], '})),
    Mistake("constraints_in_a_list", ["train.py"], "constraints to be a mapping by name",
            script({'{"says_it": Constraint(at_least=0.9)}': "[Constraint(at_least=0.9)]"})),
    # Resuming
    Mistake("another_learning_rate_when_resuming",
            fit(*GRID, "--trainer.max_steps=4", "--model.optimizer.lr=1e-5", "--ckpt_path=last"), r"\blr\b",
            before=[fit(*GRID)]),
    Mistake("tilde_in_save_dir",
            fit(*GRID, "--trainer.logger.save_dir=~/runs", "--trainer.max_steps=4", "--ckpt_path=last"),
            "save_dir|Restored all states from the checkpoint", env={"HOME": "home"},
            before=[fit(*GRID, "--trainer.logger.save_dir=~/runs")]),
    Mistake("second_run_in_the_same_version", fit(*GRID, *SAME, "--seed_everything=1"),
            r"logger\.version|another version", before=[fit(*GRID, *SAME)]),
    Mistake("new_run_from_the_config_of_a_resumed_one",
            fit("-c", "runs/gridworld/version_1/config.yaml", "--seed_everything=1", "--trainer.max_steps=6"),
            "ckpt_path",
            before=[fit(*GRID, NAMED), fit(*GRID, NAMED, "--trainer.max_steps=4", "--ckpt_path=last")]),
    # Loggers and callbacks
    Mistake("logger_that_is_not_installed", fit(*GRID, "--trainer.logger=MLFlowLogger"), "mlflow"),
    Mistake("monitor_with_a_typo",
            fit(*GRID, "--callbacks.checkpoints.monitor=val/rate/lavva", "--trainer.val_check_interval=1",
                "--trainer.limit_val_batches=1", "--data.val_prompts=4",
                "--callbacks.checkpoints.every_n_train_steps=1"), "monitor"),
    # Several processes
    Mistake("torchrun_with_one_device", fit(*GRID), "devices", env=TORCHRUN),
    Mistake("slurm_tasks_with_one_device", fit(*GRID), "devices|ntasks", env=SLURM),
    # Other commands
    Mistake("export_without_the_lora_of_the_run", [*CLI, "export", *WORDS, "--out", "mine"], r"rank=4|config\.yaml",
            before=[fit(*WORDS, "--model.policy.lora.rank=4")]),
    Mistake("report_without_logs", [*CLI, "report", "runs", "--out", "report"], "Found no run|no 'runs'",
            before=[fit(*GRID, "--trainer.logger=false")]),
    Mistake("misspelled_dialect",
            [*SCORE, "--dialect", "epdsm"], "epdms_no_ec"),
    Mistake("headings_in_degrees", [*SCORE], "yaw|heading|radian",
            {"make_scene.py": MAKE_SCENE}, before=[["make_scene.py"]]),
]  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a mistake led to."""

    name: str
    status: int | None
    lines: int
    good: bool
    text: str


def run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int | None, str]:
    """The exit status, None after the time limit, and all output."""
    output = folder / "output.txt"
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": str(COLUMNS), **env}
    with forked(as_user, folder, list(command), output=output, environment=environment) as process:
        process.join(TIMEOUT)
        status = process.exitcode
    return status, output.read_text(errors="replace")


def as_user(folder: Path, command: list[str]) -> None:
    """As ``python COMMAND`` does in the folder."""
    os.chdir(folder)
    os.setsid()
    sys.path[:0] = [str(folder), str(ROOT)]
    if command[:2] == list(CLI):
        sys.argv = ["lightning_cgrpo", *command[2:]]
        run_command()
    elif command[:2] == list(SCORE[:2]):
        sys.exit(run_score(command[2:]))
    elif command[0] == "-c":
        exec(command[1], {"__name__": "__main__"})
    else:
        run_script(Path(command[0]), *command[1:])


def try_mistake(mistake: Mistake) -> Answer:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in mistake.files.items():
            (folder / file).write_text(text, encoding="utf-8")
        for command in mistake.before:
            status, output = run(command, folder, mistake.env)
            if status != 0:
                raise RuntimeError(f"{mistake.name}: {command} ended with {status}:\n{output}")
        status, output = run(mistake.command, folder, mistake.env)
    return judged(mistake, status, output)


def judged(mistake: Mistake, status: int | None, output: str) -> Answer:
    everything = output.rstrip().splitlines()
    answer = answer_lines(everything, status, mistake)
    lines = sum(max(1, -(-len(line) // COLUMNS)) for line in answer)
    good = status is not None and 0 < lines <= LINES and re.search(mistake.names, " ".join(answer)) is not None
    return Answer(mistake.name, status, lines, good, "\n".join((answer if status else everything)[-SHOWN:]))


def answer_lines(output: Sequence[str], status: int | None, mistake: Mistake) -> list[str]:
    """The error, traceback included unless the user's own script raised it; else the warnings that name the setting."""
    if status == 0:
        return [line for line in output if re.search(mistake.names, line)]
    commands = {"lightning_cgrpo", "navsim_score"} & {*mistake.command}
    starts = r"Traceback \(most recent call last\)|usage: |(lightning_cgrpo|navsim_score): error: "
    if not commands:
        starts = r"[A-Za-z_.]+(Error|Exception|Interrupt|Failure): "
    found = [number for number, line in enumerate(output) if re.match(starts, line)]
    if not found:
        return list(output[-SHOWN:])
    return list(output[found[0] if commands else found[-1] :])
