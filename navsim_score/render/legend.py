"""Legend of candidates and marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from driving_scenes.scene import AGENT_TYPES, Scene
from navsim_score.render import style
from navsim_score.render.rollouts import Rollout

LINES = 36
"""Most candidates listed; beyond, the best and the worst."""
KEY_LINES = 7
BAR, NAME, SCORE, VIOLATED = 0.0, 0.07, 0.5, 0.54
"""Left ends of columns; right end of the score."""


def draw_list(axes: Axes, title: str, rollouts: Sequence[Rollout]) -> None:
    """List candidates from best to worst, with violations and times."""
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(LINES + KEY_LINES, -3.0))
    _write_text(axes, BAR, -2.4, title, fontsize=10, fontweight="bold")
    for x, head, align in ((NAME, "candidate", "left"), (SCORE, "EPDMS", "right"), (VIOLATED, "violated (s)", "left")):
        _write_text(axes, x, -0.9, head, color=style.FAINT_INK, ha=align)
    order = sorted(rollouts, key=lambda rollout: (-rollout.score, not rollout.valid))
    # If there are too many, a line in the middle counts the candidates that are left out.
    left_out = 0
    best = len(order)
    if len(order) > LINES:
        left_out = len(order) - LINES + 1
        best = (LINES - 1) // 2 + 1
    for line, rollout in enumerate(order[:best]):
        _draw_line(axes, line, rollout)
    if left_out:
        _write_text(axes, NAME, best, f"… {left_out} more", color=style.FAINT_INK)
        for line, rollout in enumerate(order[best + left_out :], best + 1):
            _draw_line(axes, line, rollout)


def draw_key(axes: Axes, scene: Scene, rollouts: Sequence[Rollout]) -> None:
    """Explain marks, lines and colors, below the list."""
    gray: dict[str, Any] = {"color": style.FAINT_INK, "markersize": 6}
    handles = [
        Line2D([], [], linewidth=2, label="driven (simulated)", **gray),
        Line2D([], [], linewidth=0.9, linestyle=":", label="planned", **gray),
    ]
    for name, marker in style.MARKS.items():
        if any(name in rollout.marks for rollout in rollouts):
            label = f"{name} {style.MEANINGS[name]}"
            handles.append(Line2D([], [], marker=marker, linestyle="", label=label, **gray))
    if any(rollout.hits for rollout in rollouts):
        handles.append(
            Line2D([], [], marker="s", linestyle="", markerfacecolor="none", color=style.RED_LIGHT, label="hit")
        )
    for number, name in enumerate(AGENT_TYPES):
        if (scene.agents.types == number).any():
            label = name.replace("_", " ")
            color = style.AGENTS[name]
            handles.append(Line2D([], [], marker="s", linestyle="", markersize=6, color=color, label=label))
    if len(scene.agents.tokens):
        handles.append(Line2D([], [], marker="^", linestyle="", label="(on an agent) moves within 4 s", **gray))
    axes.legend(
        handles=handles, loc="lower left", ncols=2, fontsize=6.5, frameon=False, borderaxespad=0.0, columnspacing=1.2
    )


def _draw_line(axes: Axes, line: int, rollout: Rollout) -> None:
    name = str(rollout.number)
    if rollout.tag and rollout.tag != name:
        name = f"{name}  {rollout.tag}"
    if len(name) > 27:
        name = f"{name[:26]}…"
    _write_text(axes, NAME, line, name)
    if not rollout.valid:
        _write_text(axes, VIOLATED, line, "malformed", color=style.FAINT_INK)
        return
    axes.plot([BAR, BAR + 0.05], [line, line], color=style.SCORES(rollout.score), linewidth=4, solid_capstyle="butt")
    _write_text(axes, SCORE, line, f"{rollout.score:.3f}", ha="right")
    notes = [f"{name} {step / 10:.1f}" for name, step in rollout.marks.items()]
    if rollout.uncomfortable:
        notes.append("HC")
    _write_text(axes, VIOLATED, line, "  ".join(notes))


def _write_text(axes: Axes, x: float, y: float, text: str, **look: Any) -> None:
    usual: dict[str, Any] = {"fontsize": 7.5, "color": style.INK, "va": "center"}
    axes.text(x, y, text, **usual | look)
