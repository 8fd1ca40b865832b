"""Fuzz all parsers of foreign input: completions, data, scenes, trajectories, replies, checkpoints.

    python -m benchmarks.fuzz                      # hypothesis, 127,000 inputs
    python -m benchmarks.fuzz --scale 0.01         # fewer

Each parser must return its documented value or error. Prints the inputs given and accepted per parser; stops at the
first failure, minimized.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from driving_scenes.generator import GeneratedScenes
from driving_scenes.json_fields import SceneError
from driving_scenes.scene import Scene
from driving_scenes.scene_file import read_scene, scene_to_json
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.records import RecordError, read_records
from lightning_cgrpo.run.checkpoints.damage import find_damage
from lightning_cgrpo.samplers.vllm.requests import read_turn
from lightning_cgrpo.tasks.driving.answers import REACH, AnswerFormat
from lightning_cgrpo.tasks.functions import prompts as any_prompts
from lightning_cgrpo.tasks.gsm8k import prompts as gsm8k_prompts
from lightning_cgrpo.tasks.gsm8k.scoring import gold_answer, read_number, score_completion
from navsim_score.command.trajectory_file import Candidate, read_candidates

JUNK: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 10**30, 1e308, float("nan"), float("inf"), "", "a", "\ud800", "é" * 70, [], {}),
    *([[]], [None], [[0, 0]], [[1.0, "x"]], {"a": 1}, [0] * 8, [[0.0, 0.0, 0.0]] * 8, [[0.0, 0.0, float("inf")]] * 8),
]
"""Values for a JSON field."""


@dataclass(frozen=True)
class Target:
    """A parser.

    Args:
        inputs: fuzzed inputs.
        check: parses an input, checks the outcome, and returns whether the input is valid.
        count: number of inputs.
    """

    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], bool]
    count: int


def texts(*pieces: str) -> st.SearchStrategy[str]:
    """Mix meaningful pieces with any characters, including halves of surrogate pairs."""
    anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
    return st.lists(st.one_of(st.sampled_from(pieces), st.sampled_from(pieces), anything), max_size=14).map("".join)


def changed(value: Any, draw: random.Random) -> Any:
    """JSON with one to three fields missing, doubled or replaced."""
    root = [copy.deepcopy(value)]
    for _ in range(draw.randint(1, 3)):
        at: Any = root
        key: Any = 0
        while isinstance(at[key], (dict, list)) and at[key] and draw.random() < 0.85:
            at = at[key]
            key = draw.choice(list(at)) if isinstance(at, dict) else draw.randrange(len(at))
        action = draw.random()
        if action < 0.2 and at is not root:
            del at[key]
        elif action < 0.3 and isinstance(at, list) and at is not root:
            at.append(copy.deepcopy(at[key]))
        else:
            at[key] = copy.deepcopy(draw.choice(JUNK))
    return root[0]


def random_changes(value: Any) -> st.SearchStrategy[Any]:
    return st.integers(0, 2**60).map(lambda number: changed(value, random.Random(number)))


def check_gsm8k(text: str) -> bool:
    scores_by_profile = [score_completion(text, "That makes 12. #### 12", profile) for profile in ("robust", "authors")]
    assert all(scores.keys() == {"correctness", "format", "integer"} for scores in scores_by_profile)
    assert all(value in (0.0, 1.0) for scores in scores_by_profile for value in scores.values())
    number = read_number(gold_answer(text))
    assert number is None or (isinstance(number, Decimal) and number.is_finite())
    return any(scores_by_profile[0].values()) or number is not None


def check_waypoints(text: str) -> bool:
    points = AnswerFormat(waypoints=2).read(text)
    assert points is None or (points.shape == (2, 2) and bool((points.abs() <= REACH).all()))
    return points is not None


def through_a_file(content: bytes, read: Callable[[Path], Any], name: str, error: type[UserError]) -> Any:
    """Write and read a file; None if the documented error is raised."""
    file = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}-{name}"
    file.write_bytes(content)
    try:
        return read(file)
    except error as raised:
        assert str(file) in str(raised), "an error names the file"
        return None
    finally:
        file.unlink()


def check_records(content: bytes) -> bool:
    records = through_a_file(content, read_records, "a.jsonl", RecordError) or []
    for record in records:
        for columns in (any_prompts.columns, gsm8k_prompts.columns):
            with contextlib.suppress(RecordError):
                assert "prompt" in columns(record)
    return bool(records)


def check_scene(content: Any) -> bool:
    scene = through_a_file(json.dumps(content).encode(), read_scene, "a.scene.json", SceneError)
    if scene is not None:
        assert isinstance(scene, Scene)
        assert scene.ego.poses.isfinite().all() and scene.agents.states.isfinite().all()
        json.dumps(scene_to_json(scene))
    return scene is not None


def check_candidates(content: Any) -> bool:
    candidates = through_a_file(json.dumps(content).encode(), read_candidates, "a.trajs.json", SceneError)
    for candidate in candidates or []:
        assert isinstance(candidate, Candidate) and (candidate.poses is not None or candidate.error)
        assert candidate.poses is None or (candidate.poses.shape == (8, 3) and candidate.poses.isfinite().all())
    return any(candidate.error is None for candidate in candidates or [])


def check_reply(reply: Any) -> bool:
    policy = SimpleNamespace(name="tiny", output_weight=range(50))
    request = {"prompt": [5, 6], "max_tokens": 3, "stop_token_ids": [8]}
    try:
        turn = read_turn(policy, request, reply if isinstance(reply, dict) else {}, "the server")  # type: ignore[arg-type]
    except UserError:
        return False
    assert all(token in policy.output_weight for token in turn.tokens) and len(turn.log_probs) == len(turn.tokens)
    return True


def _checkpoint() -> bytes:
    buffer = io.BytesIO()
    torch.save({"state_dict": {"weight": torch.arange(500.0)}, "global_step": 3}, buffer)
    return buffer.getvalue()


WHOLE = _checkpoint()


def check_checkpoint(number: int) -> bool:
    """Check that damage to any part that is read is noticed; True if none is noticed."""
    draw = random.Random(number)
    content = bytearray(WHOLE)
    if draw.random() < 0.3:
        del content[draw.randrange(len(content)) :]
    for _ in range(draw.randint(0, 3)):
        if content:
            content[draw.randrange(len(content))] = draw.randrange(256)
    file = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}.ckpt"
    file.write_bytes(content)
    whole = find_damage(file) is None
    if whole:
        try:
            read = torch.load(file, weights_only=True)
        except RuntimeError:  # torch's own reader is stricter with the directory of the archive
            read = None
        assert read is None or torch.equal(read["state_dict"]["weight"], torch.arange(500.0))
        assert read is None or read["global_step"] == 3
    file.unlink()
    return whole


def _jsonl() -> st.SearchStrategy[bytes]:
    records = [{"prompt": "Hi", "answer": "#### 3"}, {"question": "Why?", "answer": "So. #### 1,000"}]
    records += [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}]
    lines = st.one_of(
        st.sampled_from(records).flatmap(random_changes).map(lambda value: json.dumps(value).encode()),
        st.sampled_from([b"", b"[", b"{}", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"1" * 5000, b"[" * 5000]),
        st.binary(max_size=20),
    )
    return st.lists(lines, max_size=3).map(b"\n".join)


NUMBERS = ("1", "12", "12.5", "-3", "1e9", "1e999", ".", ",", " ", "9" * 90, "٣", "½", "NaN", "+", "$", "%", "inf")
TAGS = ("<think>", "</think>", "\n", "<answer>", "</answer>", "<answer>12</answer>", "####", "12 apples", "\u2212")


def targets() -> dict[str, Target]:
    scene = scene_to_json(GeneratedScenes().scenes("train")[0])
    trajectories = {"trajectories": [{"tag": "a", "poses": [[2.0 * n, 0.0, 0.0] for n in range(8)]}] * 2}
    reply = {
        "id": "cmpl-1",
        "model": "tiny",
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
        "choices": [
            {
                "prompt_token_ids": [5, 6],
                "token_ids": [7, 8],
                "logprobs": {"token_logprobs": [-0.5, -0.25]},
                "finish_reason": "stop",
            }
        ],
    }
    return {
        "GSM8K answers": Target(texts(*NUMBERS, *TAGS), check_gsm8k, 40_000),
        "waypoints": Target(texts(*NUMBERS, "[", "]", "(", ")", "[1.0,2.0]", "(3,-4.5)"), check_waypoints, 40_000),
        "records (.jsonl)": Target(_jsonl(), check_records, 20_000),
        "scene files": Target(random_changes(scene), check_scene, 5_000),
        "trajectory files": Target(random_changes(trajectories), check_candidates, 10_000),
        "vLLM's replies": Target(random_changes(reply), check_reply, 10_000),
        "checkpoints": Target(st.integers(0, 2**60), check_checkpoint, 2_000),
    }


ROUND = 1000
"""Inputs before hypothesis restarts, because its memory of tried inputs slows it tenfold."""


def fuzz(target: Target, count: int, number: int = 0) -> tuple[int, int]:
    """Fuzz a parser, seeded by `number`; returns the numbers of given and valid inputs."""
    rounds = [min(ROUND, count - begun) for begun in range(0, count, ROUND)]
    counts = [fuzz_round(target, size, number * 1000 + index) for index, size in enumerate(rounds)]
    return sum(given_to_it for given_to_it, _ in counts), sum(valid for _, valid in counts)


def fuzz_round(target: Target, count: int, number: int) -> tuple[int, int]:
    given_to_it, valid = 0, 0

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def run(value: Any) -> None:
        nonlocal given_to_it, valid
        given_to_it += 1
        valid += target.check(value)

    run()
    return given_to_it, valid


def main(argv: list[str] | None = None) -> dict[str, tuple[int, int]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of inputs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    counts = {}
    for name, target in targets().items():
        started = time.perf_counter()
        counts[name] = fuzz(target, max(int(target.count * options.scale), 1), options.seed)
        count, valid = counts[name]
        each = (time.perf_counter() - started) / count
        print(f"{name:18} {count:8,} inputs, {valid / count:4.0%} valid, {1e3 * each:.2f} ms each", flush=True)
    print(f"{'all':18} {sum(count for count, _ in counts.values()):8,} inputs")
    return counts


if __name__ == "__main__":
    main()
