"""NavsimSignals: scores of batches of candidates in stored scenes, for training loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from driving_scenes.errors import InputError
from navsim_score.columns import COLUMNS, EXTENDED_COMFORT, SHORT
from navsim_score.command.trajectory_file import SAMPLINGS
from navsim_score.dialects import EPDMS, OFF, Epdms
from navsim_score.provenance import Provenance
from navsim_score.scorer import Scores
from navsim_score.scoring.comfort import paired_comfort
from navsim_score.store.joined import joined
from navsim_score.store.store import Store
from navsim_score.traffic.log_replay import LogReplay

NAMES = {official: short for short, official in SHORT.items() if official in (*COLUMNS, EXTENDED_COMFORT)}
"""Short name by official column."""


class BatchSignals(dict[str, Tensor]):
    """Signals ``[B, G]`` by name: NC, DAC, DDC, TLC, EP, TTC, LK, HC, EC, wat and epdms, in [0, 1].

    Attributes:
        valid: ``[B, G]`` bool, False for malformed candidates.
        dialect: full name of the score in ``epdms``.
        provenance: of the scenes and the score.
    """

    def __init__(
        self, values: Mapping[str, Tensor], valid: Tensor, scores: Scores, dialect: str, provenance: Provenance
    ) -> None:
        super().__init__(values)
        self.valid = valid
        self.scores = scores
        self.dialect = dialect
        self.provenance = provenance


class NavsimSignals:
    """Scores G candidates in each of B stored scenes, in replayed traffic, on the candidates' device.

    Signals are NAVSIM v2's sub-scores by short name, ``wat`` (the mean of the weighted terms) and ``epdms``. Malformed
    candidates, which are not finite, have 0. EC is NaN without a frame before in the batch, and where either candidate
    of the pair is malformed; ``wat`` and ``epdms`` count EC where it is known.

    Args:
        store: a folder of `python -m navsim_score store`.
        human_filter: ignore violations that the human also commits, in original scenes; official.
        both_frames: EC counts for the earlier frame of a pair, too, as in the devkit's two stages; by default for the
            later frame alone, as in one stage.

    Raises:
        InputError: no store, or a damaged one.

    Example::

        signals = NavsimSignals("store")
        measured = signals(poses, tokens)  # poses [B, G, 8, 3]
        advantages = ConstrainedAdvantages(objective)(measured)
    """

    def __init__(self, store: str | Path, human_filter: bool = True, both_frames: bool = False) -> None:
        self.store = Store(store)
        self.human_filter = human_filter
        self.both_frames = both_frames
        dialect = EPDMS if human_filter else Epdms(OFF)
        self.dialect = dialect.full_name(LogReplay())

    @property
    def provenance(self) -> Provenance:
        return self.store.provenance

    @torch.no_grad()  # a score is a constant of training
    def __call__(
        self,
        poses: Tensor,
        tokens: Sequence[str],
        previous: Sequence[str | None] | None = None,
        interval: float | None = None,
    ) -> BatchSignals:
        """Score candidates.

        Args:
            poses: ``[B, G, P, 3]`` x, y, yaw in the ego's frame at t = 0, at ``interval``, 2 ``interval``, … seconds.
            interval: seconds; by default 0.5 of 8 poses, and 0.1 of 40.
            tokens: B names of scenes.
            previous: of each scene, the name of the scene half a second before, None without; by default the store's.
                Candidate g is compared with candidate g of this scene, if it is in the batch. Of scenes that are in it
                several times, the n-th copy is compared with the n-th of the scene before, or with its last.

        Raises:
            InputError: wrong shapes, an empty batch, poses of an unknown interval, or an unknown scene.
        """
        if poses.dim() != 4 or poses.shape[3] != 3 or len(poses) != len(tokens):
            raise InputError(
                f"Expected poses [B, G, P, 3] of B scenes, but got {list(poses.shape)} and {len(tokens)} tokens."
            )
        if 0 in poses.shape:
            raise InputError(f"Expected at least one scene, candidate and pose, but got poses {list(poses.shape)}.")
        if interval is None and poses.shape[2] not in SAMPLINGS:
            raise InputError(
                f"Expected interval=, the seconds between poses, because only 8 and 40 poses have a default, but got "
                f"{poses.shape[2]} poses without."
            )
        if interval is None:
            interval = SAMPLINGS[poses.shape[2]]
        if previous is not None and len(previous) != len(tokens):
            raise InputError(f"Expected one previous scene per token, but got {len(previous)} of {len(tokens)} tokens.")
        entries = [self.store.entry(token) for token in tokens]
        if previous is None:
            previous = [entry.previous for entry in entries]
        # A scene that is several times in the batch is read once.
        row_of_scene = {token: row for row, token in enumerate(dict.fromkeys(tokens))}
        records = [self.store.record(token) for token in row_of_scene]
        scorer = joined(records, poses.device, self.human_filter)

        # 1. The sub-scores of all candidates.
        count, group = poses.shape[:2]
        scene_B = torch.tensor([row_of_scene[token] for token in tokens], device=poses.device)
        scores = scorer(poses.flatten(0, 1), scene_B.repeat_interleave(group), interval)
        # 2. Extended comfort of pairs of frames.
        states = scores.states.unflatten(0, (count, group))
        comfort = states.new_full((count, group), torch.nan)
        pairs = _pair_rows(tokens, previous)
        if pairs:
            now, before = torch.tensor(pairs, device=poses.device).T
            comfort[now] = paired_comfort(states[now], states[before])
            if self.both_frames:
                # Of several pairs with the same frame before, the first counts.
                firsts = {earlier: later for later, earlier in reversed(pairs)}
                before, now = torch.tensor(list(firsts.items()), device=poses.device).T
                comfort[before] = torch.where(comfort[before].isnan(), comfort[now], comfort[before])
        scores = scores.with_extended_comfort(comfort.flatten())
        # 3. Totals; malformed candidates have 0.
        values = {short: scores.columns[name] for name, short in NAMES.items()}
        values |= {"wat": scores.weighted_average, "epdms": scores.epdms}
        signals = {}
        for name, value in values.items():
            known = value if name == "EC" else torch.where(scores.valid, value, 0.0)
            signals[name] = known.unflatten(0, (count, group))
        valid = scores.valid.unflatten(0, (count, group))
        return BatchSignals(signals, valid, scores, self.dialect, self.provenance)


def _pair_rows(tokens: Sequence[str], previous: Sequence[str | None]) -> list[tuple[int, int]]:
    """Rows of scenes, each with the row of the scene before."""
    copies: dict[str, list[int]] = {}
    for row, token in enumerate(tokens):
        copies.setdefault(token, []).append(row)
    pairs = []
    for token, rows in copies.items():
        for number, row in enumerate(rows):
            before = previous[row]
            if before is not None and before != token and before in copies:
                earlier = copies[before]
                pairs.append((row, earlier[min(number, len(earlier) - 1)]))
    return sorted(pairs)
