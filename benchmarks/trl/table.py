"""Measured ratios beside the goals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.trl.settings import Setting

Measured = Mapping[str, Mapping[str, float]]
"""`Meter.results` by side."""

HEADER = (
    "| prompt, answer, group | beta, passes | ours s | TRL s | TRL, answers only s | update | rollout | training "
    "| memory | tokens | goals |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def ratios(setting: Setting, measured: Measured) -> dict[str, Any]:
    """How many times less this project takes than TRL projecting answers only.

    Updates and memory are also compared with unchanged TRL.
    """
    ours, stock, fair = (measured[side] for side in ("ours", "trl", "trl, answers only"))
    times = {name: fair[name] / ours[name] for name in ("update", "rollout", "training", "memory")}
    return {
        **times,
        "update, TRL as it is": stock["update"] / ours["update"],
        "memory, TRL as it is": stock["memory"] / ours["memory"],
        "tokens": setting.token_ratio,
        "update: goal met": times["update"] >= setting.times_faster,
        "memory: goal met": None if setting.times_smaller is None else times["memory"] >= setting.times_smaller,
    }


def row(setting: Setting, measured: Measured) -> str:
    found = ratios(setting, measured)
    seconds = " | ".join(f"{measured[side]['update']:.1f}" for side in ("ours", "trl", "trl, answers only"))
    goals = ", ".join(
        f"{what} {goal:g}x {'met' if found[f'{what}: goal met'] else 'MISSED'}"
        for what, goal in (("update", setting.times_faster), ("memory", setting.times_smaller))
        if goal is not None
    )
    sizes = f"{setting.prompt}, {setting.completion}, {setting.group} | {setting.kl_weight:g}, {setting.epochs}"
    return (
        f"| {sizes} | {seconds} "
        f"| {found['update']:.1f}x ({found['update, TRL as it is']:.1f}x) | {found['rollout']:.1f}x "
        f"| {found['training']:.1f}x | {found['memory']:.1f}x ({found['memory, TRL as it is']:.1f}x) "
        f"| {found['tokens']:.1f} | {goals} |"
    )
