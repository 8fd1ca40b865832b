"""The command `score`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from driving_scenes.errors import InputError
from navsim_score.command.pairs import Pair, match_files

FILTERED = ("epdms_no_ec", "epdms_before_fix", "epdms_before_fix_no_ec", "epdms_valid")
DIALECT_KEYS = (*FILTERED, "epdms_no_filter", "epdms_no_filter_no_ec", "pdms")
"""`dialects.DIALECTS` but the default, named here because --help must not wait for torch."""

if TYPE_CHECKING:
    from navsim_score.command.scored_scene import ScoredScene


def main(argv: Sequence[str] | None = None) -> None:
    """Score the files of the command line.

    Raises:
        InputError: nothing to score, no writable file, or (after writing) failed scenes.
    """
    options = _make_parser().parse_args(argv)
    if options.out.is_dir():
        raise InputError(
            f"Expected --out to be a file, but '{options.out}' is a folder, try {options.out / 'scores.json'}."
        )
    if options.render is not None and options.render.exists() and not options.render.is_dir():
        raise InputError(f"Expected --render to be a folder, but '{options.render}' is a file.")
    pairs, notes = match_files(options.scenes, options.trajectories)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        errors = _score_and_write(options, pairs, notes)
    except OSError as error:
        raise InputError(f"The scores can't be written: {error.filename}: {error.strerror or error}.") from error
    if errors:
        raise InputError(f"{len(errors)} of {len(pairs)} scenes could not be scored:\n" + "\n".join(errors))


def _score_and_write(options: argparse.Namespace, pairs: Sequence[Pair], notes: Sequence[str]) -> list[str]:
    # Imported here, because --help and wrong paths must not wait for torch and scipy.
    from navsim_score.command.score_files import score_files, without_previous
    from navsim_score.command.two_stages import two_stages
    from navsim_score.dialects import DIALECTS
    from navsim_score.tables import MOST_LINES, show_scores, show_stages
    from navsim_score.traffic.log_replay import LogReplay
    from navsim_score.traffic.reactive import Reactive

    # The first dialect is the form of the column `epdms`; each dialect counts once.
    first_key = "epdms_no_filter" if options.no_human_filter else "epdms"
    dialects = [DIALECTS[key] for key in dict.fromkeys([first_key, *options.dialect])]
    filtered = [DIALECTS[key] for key in FILTERED]
    if options.no_human_filter and any(dialect in filtered for dialect in dialects):
        raise InputError("Expected --dialect without a human filter beside --no-human-filter, try without the latter.")
    pictures = options.render is not None or options.explain is not None
    traffic = Reactive() if options.traffic == "reactive" else LogReplay()
    with _progress_bar("Scoring", len(pairs)) as done:
        results, errors = score_files(pairs, traffic, dialects, pictures, done, options.explain)
    rows = {result.stem: result.rows() for result in results}
    # Written even without rows, because an older file must not be taken for these scores.
    options.out.write_text(json.dumps(rows, indent=1, allow_nan=False), encoding="utf-8")
    if rows:
        show_scores(rows)
    stages, left_out = two_stages(results, dialects[0], traffic)
    if stages:
        show_stages(dict(islice(stages.items(), MOST_LINES)))
    for note in [*notes, *without_previous(results), *left_out]:
        print(f"- {note}")
    print(f"Wrote {options.out}.")
    explained = [result for result in results if result.words]
    if options.explain is not None and not explained:
        errors.append(f"Expected --explain to be one of the scored scenes, but got '{options.explain}'.")
    for result in explained:
        _write_explanation(result, options.out.parent)
    if options.render is not None and results:
        _draw_pictures(results, options.render)
    return errors


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m navsim_score score",
        usage="%(prog)s --scenes PATH --trajectories PATH [option ...] (--help lists the options)",
        description="Score driving trajectories as NAVSIM v2 does (EPDMS): a simulated car drives them, and is judged "
        "by collisions, road, direction, lights, progress, time to collision, lane keeping and comfort. "
        "See navsim_score/README.md for the files and for what the scores mean.",
        epilog="A malformed trajectory is reported in its row, with scores of 0, and a malformed scene on the screen; "
        "the rest is scored. The exit status is 2 if a scene could not be scored.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--scenes", metavar="PATH", type=Path, required=True, help="a scene, or a folder of NAME.scene.json"
    )
    parser.add_argument(
        "--trajectories",
        metavar="PATH",
        type=Path,
        required=True,
        help="candidates in a scene, or a folder of NAME.trajs.json; may be the folder of the scenes. The devkit's "
        "submission.pkl, or a .csv of token,x,y,heading, has those of the scenes named by their tokens",
    )
    parser.add_argument(
        "--traffic",
        choices=("log_replay", "reactive"),
        default="log_replay",
        help="the others drive as they were logged (default), or vehicles keep their distance (IDM)",
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, default=Path("scores.json"), help="what to write (default: %(default)s)"
    )
    parser.add_argument(
        "--no-human-filter", action="store_true", help="hold against candidates also what the human driver violated"
    )
    parser.add_argument(
        "--dialect",
        nargs="+",
        choices=DIALECT_KEYS,
        default=[],
        metavar="NAME",
        help="further versions of the score, from the same simulation: %(choices)s",
    )
    parser.add_argument(
        "--explain", metavar="NAME", help="say in words why the candidates of this scene got their scores, and draw it"
    )
    parser.add_argument("--render", metavar="DIR", type=Path, help="draw each scene from above, as DIR/NAME.png")
    return parser


def _write_explanation(result: ScoredScene, folder: Path) -> None:
    from navsim_score.tables import label

    lines = [f"{result.stem}: {next(iter(result.totals))}"]
    for row, words in enumerate(result.words):
        total = float(result.scores.epdms[row].nan_to_num(0))
        lines.append(f"candidate {label(result.tags, row)}: {total:.4f}")
        lines += [f"  {sentence}" for sentence in words]
    text = "\n".join(lines)
    (folder / f"{result.stem}.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    _draw_pictures([result], folder)


def _draw_pictures(results: Sequence[ScoredScene], folder: Path) -> None:
    from navsim_score.render.draw import draw

    folder.mkdir(parents=True, exist_ok=True)
    with _progress_bar("Drawing", len(results)) as done:
        for result in results:
            assert result.picture is not None
            scene, centerline, hits = result.picture
            figure = draw(scene, result.poses, result.scores, tags=result.tags, centerline=centerline, hits=hits)
            figure.savefig(folder / f"{result.stem}.png", dpi=120)
            done(1)
    pictures = "picture" if len(results) == 1 else "pictures"
    print(f"Drew {len(results)} {pictures} in {folder.resolve()}.")


@contextmanager
def _progress_bar(words: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(words, total=total)
        yield lambda count: bar.advance(task, count)
