"""Words for a plan's score: which rule cost what, when, and what the human filter changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from driving_scenes.scene import AGENT_TYPES, MOVING_TYPES, Scene
from navsim_score.batch.agent_tracks import AgentTracks
from navsim_score.columns import EGO_PROGRESS, EXTENDED_COMFORT, SHORT
from navsim_score.geometry.boxes import box_corners, boxes_touch, segments_touch_boxes
from navsim_score.official_constants import (
    AHEAD,
    BEHIND,
    COMFORT_BOUNDS,
    LEAST_PROGRESS,
    LOOK_AHEAD_STEPS,
    OFF_CENTER,
    OFF_CENTER_STEPS,
    STOPPED_SPEED,
)
from navsim_score.scorer import Scorer, Scores
from navsim_score.scoring.areas import EgoAreas, ego_areas
from navsim_score.scoring.motion import Motion, take
from navsim_score.simulation.timing import DT

BESIDE, BACKWARD = 1.0, 0.5
"""Meters of a plan that get a sentence: of its first pose beside the ego, and backward in all."""


@dataclass(frozen=True, eq=False)
class _Drive:
    """A simulated row, alone."""

    scene: Scene
    scorer: Scorer
    scores: Scores
    motion: Motion
    areas: EgoAreas
    traffic: AgentTracks

    def step(self, name: str) -> int:
        return int(self.scores.steps[name])

    def moved(self, step: int) -> tuple[float, float]:
        """Meters of the center forward and to the left, in the frame of the start."""
        x, y = (self.motion.centers[0, step] - self.motion.centers[0, 0]).tolist()
        cosine, sine = self.motion.directions[0, 0].tolist()
        return cosine * x + sine * y, cosine * y - sine * x

    def where(self, step: int) -> str:
        speed = float(self.motion.speeds[0, step])
        return f"At {step * DT:.1f} s, at {speed:.1f} m/s, {self.place(step)}"

    def place(self, step: int) -> str:
        forward, left = self.moved(step)
        beside = f", {abs(left):.1f} m to the {'left' if left > 0 else 'right'}" if abs(left) >= 0.05 else ""
        return f"{abs(forward):.1f} m {'ahead of' if forward >= 0 else 'behind'} its start{beside}"

    def agent(self, row: int, step: int) -> str:
        token = self.scene.agents.tokens[row] if row < len(self.scene.agents.tokens) else f"number {row}"
        kind = AGENT_TYPES[int(self.traffic.types[0, row])].replace("_", " ")
        return f"the {kind} {token} ({float(self.traffic.speeds[0, row, step]):.1f} m/s)"

    def touched(self, corners: Tensor, step: int) -> list[int]:
        """Rows of the agents whose boxes touch ``corners [4, 2]`` at a step."""
        boxes = box_corners(self.traffic.poses[0, :, step], self.traffic.sizes[0])
        hit: list[int] = (boxes_touch(boxes, corners) & self.traffic.present[0, :, step]).nonzero()[:, 0].tolist()
        return hit

    def angle(self, row: int, at: int, then: int) -> float:
        """Radians between the heading at a step and the direction to an agent at another, from the rear axle."""
        away = self.traffic.poses[0, row, then, :2] - self.motion.states[0, at, :2]
        cosine = (away @ self.motion.directions[0, at]) / away.norm()
        return float(cosine.clamp(-1, 1).acos())

    def unsafe(self, step: int) -> str:
        """Why a contact beside the ego counts; empty if it does not."""
        flags = {"off the road": self.areas.non_drivable, "in several lanes": self.areas.multiple_lanes}
        return " and ".join(words for words, flag in flags.items() if flag[0, step])


def explain(scorer: Scorer, scores: Scores, row: int, scene: int, plan: Tensor) -> list[str]:
    """Sentences about a row: what cannot be driven, and one per sub-score that is below 1 or was lifted.

    Args:
        scorer: in float64, which made the scores.
        scores: of R rows.
        row: of the plan.
        scene: index of the row's scene in the scorer.
        plan: ``[8, 3]`` x, y, yaw every half second, in the frame of the start.
    """
    alone = take(scores, slice(row, row + 1))
    if not bool(alone.valid):
        return ["The plan is malformed or cannot be driven: every sub-score counts as 0."]
    index = torch.tensor([scene], device=scorer.batch.start.device)
    states = alone.states.to(index.device)
    motion = Motion.of(states, index)
    traffic = scorer.traffic(scorer.batch, states, index)
    drive = _Drive(
        scorer.batch.scenes[scene],
        scorer,
        alone,
        motion,
        ego_areas(scorer.batch.surfaces, motion),
        traffic.by_row(),
    )
    lines = []
    for short, sentence in _SENTENCES.items():
        name = SHORT[short]
        before = float(alone.unfiltered[name])
        if before < 1:
            lines.append(f"{short} {before:.4g}: {sentence(drive)} {_human(drive, name, scene)}".rstrip())
    comfort = alone.columns.get(EXTENDED_COMFORT)
    if comfort is not None and float(comfort) == 0:
        lines.append("EC 0: The drive differs too much from the drive of the frame before, where both overlap.")
    return [*_plan(drive, plan), *(lines or ["All sub-scores are 1."])]


def _plan(drive: _Drive, plan: Tensor) -> list[str]:
    """Why the drive differs from the plan."""
    lines = []
    left = float(plan[0, 1])
    if abs(left) > BESIDE:
        side = "left" if left > 0 else "right"
        lines.append(
            f"Plan: Its first pose, at 0.5 s, is {abs(left):.1f} m to the {side} of the ego, which steers towards it."
        )
    poses = torch.cat([plan.new_zeros(1, 3), plan])
    headings = torch.stack([poses[:-1, 2].cos(), poses[:-1, 2].sin()], -1)
    back = float((poses[1:, :2] - poses[:-1, :2]).mul(headings).sum(-1).clamp(max=0).sum())
    if back < -BACKWARD:
        lines.append(f"Plan: It goes {-back:.1f} m backward. The simulated ego ends {drive.place(-1)}.")
    return lines


def _human(drive: _Drive, name: str, scene: int) -> str:
    if drive.scorer.human is None or name in (EGO_PROGRESS, SHORT["HC"]):
        return ""
    if drive.scene.synthetic or drive.scene.human is None:
        return "The scene has no human to filter by."
    human = float(drive.scorer.human[name][scene])
    if human == 0:
        return "The human has 0 too, so the human filter sets this sub-score to 1."
    lifts = "" if human == 1 else ", which the filter lifts only at 0"
    return f"The human has {human:.4g}{lifts}."


def _collision(drive: _Drive) -> str:
    step = drive.step(SHORT["NC"])
    corners = drive.motion.corners[0, step]
    said = []
    for row in drive.touched(corners, step):
        static = int(drive.traffic.types[0, row]) >= MOVING_TYPES
        stopped = static or float(drive.traffic.first_speed[0, row]) <= STOPPED_SPEED
        box = box_corners(drive.traffic.poses[0, row, step], drive.traffic.sizes[0, row])
        behind = drive.angle(row, step, step) > BEHIND
        front = bool(segments_touch_boxes(corners[None, 0], corners[None, 3], box[None]))
        unsafe = drive.unsafe(step)
        if stopped:
            what = "an object that does not move" if static else "an agent that stood when it was first seen"
            rule = f"a contact with {what}"
        elif behind or not (front or unsafe):
            continue  # not the ego's fault
        else:
            rule = "a contact with the front bumper" if front else f"a contact at the side while the ego is {unsafe}"
        said.append(f"{drive.agent(row, step)}: {rule} is the ego's fault")
    return f"{drive.where(step)}, the ego hits {'; and '.join(said)}."


def _road(drive: _Drive) -> str:
    return f"{drive.where(drive.step(SHORT['DAC']))}, a corner of the ego leaves the drivable surface."


def _direction(drive: _Drive) -> str:
    where = drive.where(drive.step(SHORT["DDC"]))
    return f"{where}, the ego has driven over 2 m within 1.1 s off the lanes of the route (over 6 m gives 0)."


def _light(drive: _Drive) -> str:
    step = drive.step(SHORT["TLC"])
    surfaces, scene = drive.scorer.batch.surfaces, int(drive.motion.scene)
    red = surfaces.red[scene, step].nonzero()[:, 0]
    several = f" (one of {len(red)} red ones)" if len(red) > 1 else ""
    return f"{drive.where(step)}, the ego touches a lane connector of its route{several} while its light is red."


def _ahead(drive: _Drive) -> str:
    step = drive.step(SHORT["TTC"])
    motion = drive.motion
    crossing = bool(drive.areas.rear_in_intersection[0, step])
    beside = drive.unsafe(step) or ("in an intersection" if crossing else "")
    for look in LOOK_AHEAD_STEPS:
        travel = motion.directions[0, step] * motion.speeds[0, step] * (look * DT)
        for row in drive.touched(motion.corners[0, step] + travel, step + look):
            angle = drive.angle(row, step, step + look)
            if angle < AHEAD or (beside and angle <= BEHIND):
                side = "ahead" if angle < AHEAD else f"beside it, which counts while the ego is {beside}"
                soon = f"in {look * DT:.1f} s" if look else "now"
                agent = drive.agent(row, step + look)
                return f"{drive.where(step)}, going straight on would hit {agent} {soon}: it is {side}."
    return f"{drive.where(step)}, going straight on would hit something within 0.9 s."


def _lane(drive: _Drive) -> str:
    step = drive.step(SHORT["LK"])
    seconds = OFF_CENTER_STEPS * DT
    return (
        f"{drive.where(step)}, the ego has been more than {OFF_CENTER:g} m off the centerline for {seconds:.0f} s "
        "outside intersections."
    )


def _progress(drive: _Drive) -> str:
    driven, expert = float(drive.scores.progress), float(drive.scores.pdm_progress)
    return (
        f"The ego makes {driven:.1f} m along the route in 4 s, the expert PDM-Closed {expert:.1f} m. The larger of "
        f"both, where it breaks no rule, is the measure (from {LEAST_PROGRESS:g} m on)."
    )


def _comfort(drive: _Drive) -> str:
    passed = drive.scores.comfort[0].tolist()
    failed = [
        f"{name.replace('_', ' ').replace('lon', 'longitudinal').replace('lat', 'lateral')} ({low:g} to {high:g})"
        for (name, (low, high)), fine in zip(COMFORT_BOUNDS.items(), passed, strict=True)
        if not fine
    ]
    return f"Outside its bounds, over the last 1.5 s and the drive: {', '.join(failed)} in units of m, s and rad."


_SENTENCES: Mapping[str, Callable[[_Drive], str]] = {
    "NC": _collision,
    "DAC": _road,
    "DDC": _direction,
    "TLC": _light,
    "EP": _progress,
    "TTC": _ahead,
    "LK": _lane,
    "HC": _comfort,
}
