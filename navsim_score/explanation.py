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

BESIDE = 1.0
"""Meters of a plan's first pose beside the ego that get a sentence."""
BACKWARD = 0.5
"""Meters backward in all that get a sentence."""


@dataclass(frozen=True, eq=False)
class _Drive:
    """A simulated row, alone."""

    scene: Scene
    scorer: Scorer
    scores: Scores
    motion: Motion
    areas: EgoAreas
    traffic: AgentTracks

    def first_step(self, short: str) -> int:
        """First violated step of a sub-score, by its short name."""
        return int(self.scores.steps[SHORT[short]])

    def displacement(self, step: int) -> tuple[float, float]:
        """Meters of the center forward and to the left, in the frame of the start."""
        x, y = (self.motion.centers[0, step] - self.motion.centers[0, 0]).tolist()
        cosine, sine = self.motion.directions[0, 0].tolist()
        return cosine * x + sine * y, cosine * y - sine * x

    def describe_moment(self, step: int) -> str:
        """Time, speed and place of the ego, as the begin of a sentence."""
        speed = float(self.motion.speeds[0, step])
        return f"At {step * DT:.1f} s, at {speed:.1f} m/s, {self.describe_place(step)}"

    def describe_place(self, step: int) -> str:
        forward, left = self.displacement(step)
        direction = "ahead of" if forward >= 0 else "behind"
        beside = ""
        if abs(left) >= 0.05:
            side = "left" if left > 0 else "right"
            beside = f", {abs(left):.1f} m to the {side}"
        return f"{abs(forward):.1f} m {direction} its start{beside}"

    def describe_agent(self, row: int, step: int) -> str:
        tokens = self.scene.agents.tokens
        token = tokens[row] if row < len(tokens) else f"number {row}"
        kind = AGENT_TYPES[int(self.traffic.types[0, row])].replace("_", " ")
        speed = float(self.traffic.speeds[0, row, step])
        return f"the {kind} {token} ({speed:.1f} m/s)"

    def touched_agents(self, corners: Tensor, step: int) -> list[int]:
        """Rows of the agents whose boxes touch ``corners [4, 2]`` at a step."""
        boxes = box_corners(self.traffic.poses[0, :, step], self.traffic.sizes[0])
        touched = boxes_touch(boxes, corners) & self.traffic.present[0, :, step]
        rows: list[int] = touched.nonzero()[:, 0].tolist()
        return rows

    def angle_to_agent(self, row: int, at: int, then: int) -> float:
        """Radians between the heading at a step and the direction to an agent at another, from the rear axle."""
        away = self.traffic.poses[0, row, then, :2] - self.motion.states[0, at, :2]
        cosine = (away @ self.motion.directions[0, at]) / away.norm()
        return float(cosine.clamp(-1, 1).acos())

    def unsafe_place(self, step: int) -> str:
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
    row_scores = take(scores, slice(row, row + 1))
    if not bool(row_scores.valid):
        return ["The plan is malformed or cannot be driven: every sub-score counts as 0."]
    index = torch.tensor([scene], device=scorer.batch.start.device)
    states = row_scores.states.to(index.device)
    motion = Motion.of(states, index)
    traffic = scorer.traffic(scorer.batch, states, index)
    drive = _Drive(
        scorer.batch.scenes[scene],
        scorer,
        row_scores,
        motion,
        ego_areas(scorer.batch.surfaces, motion),
        traffic.by_row(),
    )
    lines = []
    for short, sentence in _SENTENCES.items():
        name = SHORT[short]
        before = float(row_scores.unfiltered[name])
        if before < 1:
            lines.append(f"{short} {before:.4g}: {sentence(drive)} {_explain_filter(drive, name, scene)}".rstrip())
    comfort = row_scores.columns.get(EXTENDED_COMFORT)
    if comfort is not None and float(comfort) == 0:
        lines.append("EC 0: The drive differs too much from the drive of the frame before, where both overlap.")
    if not lines:
        lines = ["All sub-scores are 1."]
    return [*_explain_plan(drive, plan), *lines]


def _explain_plan(drive: _Drive, plan: Tensor) -> list[str]:
    """Why the drive differs from the plan."""
    lines = []
    left = float(plan[0, 1])
    if abs(left) > BESIDE:
        side = "left" if left > 0 else "right"
        lines.append(
            f"Plan: Its first pose, at 0.5 s, is {abs(left):.1f} m to the {side} of the ego, which steers towards it."
        )
    # Meters along the heading between poses, negative where the plan goes backward.
    poses = torch.cat([plan.new_zeros(1, 3), plan])
    headings = torch.stack([poses[:-1, 2].cos(), poses[:-1, 2].sin()], -1)
    along = (poses[1:, :2] - poses[:-1, :2]).mul(headings).sum(-1)
    backward = float(along.clamp(max=0).sum())
    if backward < -BACKWARD:
        lines.append(f"Plan: It goes {-backward:.1f} m backward. The simulated ego ends {drive.describe_place(-1)}.")
    return lines


def _explain_filter(drive: _Drive, name: str, scene: int) -> str:
    """What the human filter did to a sub-score below 1."""
    if drive.scorer.human is None or name in (EGO_PROGRESS, SHORT["HC"]):
        return ""
    if drive.scene.synthetic or drive.scene.human is None:
        return "The scene has no human to filter by."
    human = float(drive.scorer.human[name][scene])
    if human == 0:
        return "The human has 0 too, so the human filter sets this sub-score to 1."
    lifts = "" if human == 1 else ", which the filter lifts only at 0"
    return f"The human has {human:.4g}{lifts}."


def _explain_collision(drive: _Drive) -> str:
    step = drive.first_step("NC")
    corners = drive.motion.corners[0, step]
    faults = []
    for row in drive.touched_agents(corners, step):
        static = int(drive.traffic.types[0, row]) >= MOVING_TYPES
        stood = float(drive.traffic.first_speed[0, row]) <= STOPPED_SPEED
        box = box_corners(drive.traffic.poses[0, row, step], drive.traffic.sizes[0, row])
        behind = drive.angle_to_agent(row, step, step) > BEHIND
        front = bool(segments_touch_boxes(corners[None, 0], corners[None, 3], box[None]))
        unsafe = drive.unsafe_place(step)
        if static:
            rule = "a contact with an object that does not move"
        elif stood:
            rule = "a contact with an agent that stood when it was first seen"
        elif front and not behind:
            rule = "a contact with the front bumper"
        elif unsafe and not behind:
            rule = f"a contact at the side while the ego is {unsafe}"
        else:
            continue  # not the ego's fault
        faults.append(f"{drive.describe_agent(row, step)}: {rule} is the ego's fault")
    return f"{drive.describe_moment(step)}, the ego hits {'; and '.join(faults)}."


def _explain_road(drive: _Drive) -> str:
    moment = drive.describe_moment(drive.first_step("DAC"))
    return f"{moment}, a corner of the ego leaves the drivable surface."


def _explain_direction(drive: _Drive) -> str:
    moment = drive.describe_moment(drive.first_step("DDC"))
    return f"{moment}, the ego has driven over 2 m within 1.1 s off the lanes of the route (over 6 m gives 0)."


def _explain_light(drive: _Drive) -> str:
    step = drive.first_step("TLC")
    scene = int(drive.motion.scene)
    red = drive.scorer.batch.surfaces.red[scene, step].nonzero()[:, 0]
    several = f" (one of {len(red)} red ones)" if len(red) > 1 else ""
    moment = drive.describe_moment(step)
    return f"{moment}, the ego touches a lane connector of its route{several} while its light is red."


def _explain_time_to_collision(drive: _Drive) -> str:
    step = drive.first_step("TTC")
    motion = drive.motion
    moment = drive.describe_moment(step)
    # Why agents beside the ego count, if they do.
    beside = drive.unsafe_place(step)
    if not beside and bool(drive.areas.rear_in_intersection[0, step]):
        beside = "in an intersection"
    for look in LOOK_AHEAD_STEPS:
        travel = motion.directions[0, step] * motion.speeds[0, step] * (look * DT)
        for row in drive.touched_agents(motion.corners[0, step] + travel, step + look):
            angle = drive.angle_to_agent(row, step, step + look)
            if angle < AHEAD:
                side = "ahead"
            elif beside and angle <= BEHIND:
                side = f"beside it, which counts while the ego is {beside}"
            else:
                continue
            soon = f"in {look * DT:.1f} s" if look else "now"
            agent = drive.describe_agent(row, step + look)
            return f"{moment}, going straight on would hit {agent} {soon}: it is {side}."
    return f"{moment}, going straight on would hit something within 0.9 s."


def _explain_lane(drive: _Drive) -> str:
    moment = drive.describe_moment(drive.first_step("LK"))
    seconds = OFF_CENTER_STEPS * DT
    return (
        f"{moment}, the ego has been more than {OFF_CENTER:g} m off the centerline for {seconds:.0f} s "
        "outside intersections."
    )


def _explain_progress(drive: _Drive) -> str:
    driven = float(drive.scores.progress)
    expert = float(drive.scores.pdm_progress)
    return (
        f"The ego makes {driven:.1f} m along the route in 4 s, the expert PDM-Closed {expert:.1f} m. The larger of "
        f"both, where it breaks no rule, is the measure (from {LEAST_PROGRESS:g} m on)."
    )


def _explain_comfort(drive: _Drive) -> str:
    checks = drive.scores.comfort[0].tolist()
    failed = []
    for (name, (low, high)), passed in zip(COMFORT_BOUNDS.items(), checks, strict=True):
        if not passed:
            words = name.replace("_", " ").replace("lon", "longitudinal").replace("lat", "lateral")
            failed.append(f"{words} ({low:g} to {high:g})")
    return f"Outside its bounds, over the last 1.5 s and the drive: {', '.join(failed)} in units of m, s and rad."


_SENTENCES: Mapping[str, Callable[[_Drive], str]] = {
    "NC": _explain_collision,
    "DAC": _explain_road,
    "DDC": _explain_direction,
    "TLC": _explain_light,
    "EP": _explain_progress,
    "TTC": _explain_time_to_collision,
    "LK": _explain_lane,
    "HC": _explain_comfort,
}
