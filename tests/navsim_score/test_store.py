"""Scores of stored scenes beside those of scenes prepared anew, the devkit's rows and official scores."""

import json
import math
import pickle
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from driving_scenes.errors import InputError
from driving_scenes.generator import GeneratedScenes
from driving_scenes.scene_file import write_scene
from navsim_score.__main__ import main
from navsim_score.columns import COLUMNS
from navsim_score.provenance import scorer_version
from navsim_score.scorer import Scorer
from navsim_score.scoring import comfort
from navsim_score.scoring.comfort import extended_comfort
from navsim_score.signals import NAMES, NavsimSignals
from navsim_score.simulation import profiles, tracker
from navsim_score.store import preparing, store
from navsim_score.store.joined import joined
from navsim_score.store.preparing import of_metric_cache, prepared
from navsim_score.store.store import RECORDS, Store, write_store
from tests import refusals
from tests.navsim_score.devkit_scenes import MADE, candidates, scenes, store_of
from tests.navsim_score.test_drop_in import cache_of
from tests.navsim_score.test_parity import reference_plan

OFFICIAL = json.loads((Path(__file__).parent / "devkit_rows.json").read_text())["scenes"]
EXACT = [name for name in COLUMNS if name != "ego_progress"]
"""Products of matrices round by the number of rows, which moves progress by some 1e-15."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A store of the hand-made scenes, by their keys as tokens."""
    folder = tmp_path_factory.mktemp("stored")
    store_of(folder, scenes())
    return folder


def assert_same(found, expected, path=""):
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, path
        assert torch.allclose(found, expected, rtol=0, atol=1e-12, equal_nan=True), path
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value, f"{path}[{key}]")
    elif is_dataclass(expected):
        for field in fields(expected):
            if field.name != "scenes":
                assert_same(getattr(found, field.name), getattr(expected, field.name), f"{path}.{field.name}")


def test_joined_records_are_the_prepared_scenes(stored):
    opened = Store(stored)
    found = joined([opened.record(name) for name in scenes()], "cpu")
    expected = Scorer(list(scenes().values()))
    assert_same(found.batch, expected.batch)
    assert_same(found.expert, expected.expert)
    assert_same(found.human, expected.human)
    assert_same(found.comfort.pasts, expected.comfort.pasts)


def test_a_batch_has_each_scenes_own_scores_and_the_devkits_rows(stored):
    plans = candidates()
    tokens = [*scenes(), "late"]  # a token may repeat
    found = NavsimSignals(stored)(plans.expand(len(tokens), -1, -1, -1), tokens)
    for row, token in enumerate(tokens):
        alone = Scorer([scenes()[token]])(plans, torch.zeros(len(plans), dtype=torch.int64))
        for name in EXACT:
            assert torch.equal(found[NAMES[name]][row], alone.columns[name]), (token, name)
        assert torch.allclose(found["EP"][row], alone.columns["ego_progress"], rtol=0, atol=1e-13)
        official = torch.tensor(OFFICIAL[token]["epdms"], dtype=torch.float64)
        assert torch.allclose(found["epdms"][row], official[:, 0], rtol=0, atol=1e-9)
    assert found["EC"].isnan().all()
    unfiltered = NavsimSignals(stored, human_filter=False)(plans[None], ["human_hits"])
    official = torch.tensor(OFFICIAL["human_hits"]["epdms_no_filter"], dtype=torch.float64)
    assert torch.allclose(unfiltered["epdms"][0], official[:, 0], rtol=0, atol=1e-9)
    assert unfiltered.dialect == "EPDMS without human filter, one stage, LogReplay"


def test_recorded_official_scores_come_from_a_store(official_cases, tmp_path):
    cases = {name: case for name, case in official_cases.items() if case.official["official"].get("non_reactive")}
    assert cases
    made = (prepared(case.scene, reference_plan(*case[:2]), name) for name, case in cases.items())
    write_store(tmp_path, made, MADE)
    signals = NavsimSignals(tmp_path)
    for name, case in cases.items():
        found = signals(case.poses[None], [name])
        for place, row in enumerate(case.official["official"]["non_reactive"]):
            for column in COLUMNS:
                near = 1e-6 if column == "ego_progress" else 0
                assert found[NAMES[column]][0, place].item() == pytest.approx(row[column], abs=near, rel=0), column
            assert found["epdms"][0, place].item() == pytest.approx(row["epdms_wo_ec"], abs=1e-6)


@pytest.fixture(scope="module")
def pair():
    """A scene and the next frame."""
    made = GeneratedScenes(seed=3)
    return made.scenes("test")[0], made.next_frames("test")[0]


def test_extended_comfort_is_that_of_pairs_of_frames(pair, tmp_path):
    before, after = pair
    write_store(tmp_path, map(prepared, pair), MADE)
    poses = torch.stack([before.human, after.human])[:, None].repeat(1, 3, 1, 1)
    poses[0, 1] *= 0.3  # another drive
    poses[0, 2] = torch.nan  # malformed, so candidate 2 has no pair
    tokens = [before.name, after.name]
    found = NavsimSignals(tmp_path)(poses, tokens)  # the store knows the pair
    states = found.scores.states.unflatten(0, (2, 3))
    expected = extended_comfort(states[1, :2], states[0, :2]).double()
    assert expected.tolist() == [1, 0]
    assert found["EC"][0].isnan().all()
    assert torch.equal(found["EC"][1, :2], expected) and found["EC"][1, 2].isnan()
    # EC has weight 2 of 16.
    terms = 5 * found["EP"] + 5 * found["TTC"] + 2 * found["LK"] + 2 * found["HC"]
    assert torch.allclose(found["wat"][1, :2], (terms[1, :2] + 2 * expected) / 16)
    assert torch.allclose(found["wat"][1, 2], terms[1, 2] / 14)
    # The malformed candidate has 0 everywhere, and the caller may name the pairs.
    assert found.valid.tolist() == [[True, True, False], [True] * 3]
    assert all(found[name][0, 2] == 0 for name in found if name != "EC")
    assert NavsimSignals(tmp_path)(poses, tokens, [None, None])["EC"].isnan().all()
    both = NavsimSignals(tmp_path, both_frames=True)(poses, tokens)
    assert torch.equal(both["EC"][:, :2], expected.expand(2, -1)) and both["EC"][:, 2].isnan().all()


def test_copies_of_a_pair_of_frames_are_pairs_of_their_own(pair, tmp_path):
    before, after = pair
    write_store(tmp_path, map(prepared, pair), MADE)
    first, second = before.name, after.name
    good, other, later = before.human[None], before.human[None] * 0.3, after.human[None]
    both = NavsimSignals(tmp_path, both_frames=True)

    def comfort(plans, tokens, previous=None):
        return both(torch.stack(plans), tokens, previous)["EC"].flatten().tolist()

    assert comfort([good, later, other, later], [first, second] * 2) == [1, 1, 0, 0]
    assert comfort([other, good, later, later], [first, first, second, second]) == [0, 1, 0, 1]
    # Both later frames have the same frame before, whose comfort is that of the first pair.
    assert comfort([good, later, later * 0.3], [first, second, second]) == [1, 1, 0]
    assert comfort([good, later * 0.3, later], [first, second, second]) == [0, 0, 1]
    # No scene is its own frame before.
    assert all(math.isnan(value) for value in comfort([good, later], [first, second], [first, second]))


def test_scores_are_constants_of_a_loop_with_gradients(stored):
    """Also after a first call in a sanity check, whose tensors no backward pass could use."""
    poses, names = candidates()[None].requires_grad_(), list(scenes())[:1]
    tables = comfort._savitzky_golay, profiles._speed_map, tracker._turn_factors
    for table in tables:
        table.cache_clear()
    with torch.inference_mode():
        expected = NavsimSignals(stored)(poses, names)
    found = NavsimSignals(stored)(poses, names)
    assert not any(values.requires_grad for values in found.values())
    assert torch.equal(found["epdms"], expected["epdms"])
    with torch.inference_mode():
        made = [table(*sizes, poses.device) for table, sizes in zip(tables, ((41, 7, 2, 1), (41,), ()), strict=True)]
    assert not any(table.is_inference() for table in made)
    (poses * found["epdms"][..., None, None]).sum().backward()


def test_the_number_of_poses_tells_their_interval(stored):
    signals, plans = NavsimSignals(stored), candidates()[None]
    times = torch.arange(1, 41, dtype=torch.float64) / 40
    fine = torch.stack([20 * times, 0 * times, 0 * times], -1)[None, None]
    assert torch.equal(signals(plans, ["late"])["epdms"], signals(plans, ["late"], interval=0.5)["epdms"])
    found = signals(fine, ["cones"])
    for name, expected in signals(fine, ["cones"], interval=0.1).items():
        assert torch.equal(found[name], expected) or name == "EC", name
    assert found["epdms"] != signals(fine, ["cones"], interval=0.5)["epdms"]
    with pytest.raises(InputError, match=r"Expected interval=.* but got 16 poses"):
        signals(plans.new_zeros(1, 1, 16, 3), ["late"])
    for shape, tokens in (((0, 4, 8, 3), []), ((1, 0, 8, 3), ["late"]), ((1, 4, 0, 3), ["late"])):
        with pytest.raises(InputError, match="at least one scene, candidate and pose"):
            signals(torch.zeros(shape), tokens)


def test_a_scene_is_opened_once_and_its_numbers_stay_in_the_map(stored, monkeypatch):
    opened = []
    monkeypatch.setattr(store, "from_bytes", lambda content, read=store.from_bytes: opened.append(1) or read(content))
    signals, plans = NavsimSignals(stored), candidates()
    for tokens in (["late", "cones"], ["cones", "late", "cones"], ["late"]):
        signals(plans.expand(len(tokens), -1, -1, -1), tokens)
    assert len(opened) == 2
    record = signals.store.record("late")
    begin = signals.store._bytes.data_ptr()
    for name, values in record.items():
        assert begin <= values.data_ptr() < begin + len(signals.store._bytes) or not values.numel(), name


def test_scores_tell_where_they_come_from(stored, tmp_path):
    found = NavsimSignals(stored)(candidates()[None], ["late"])
    assert found.provenance.source == "hand-made scenes" and found.provenance.scorer == scorer_version()
    again = store_of(tmp_path, scenes())
    assert again == found.provenance  # the digest is of the contents
    other = write_store(tmp_path, [prepared(scenes()["late"])], MADE)
    assert other.digest != again.digest


def test_the_digest_is_of_names_and_pairs_too(tmp_path):
    two = [prepared(scenes()[name], name=name) for name in ("late", "cones")]
    others = [entry.name for entry, _ in two[::-1]]
    swapped = [(replace(entry, name=name), content) for (entry, content), name in zip(two, others, strict=True)]
    paired = [two[0], (replace(two[1][0], previous="late"), two[1][1])]
    digests = {write_store(tmp_path, made, MADE).digest for made in (two, swapped, paired)}
    assert len(digests) == 3


def test_scores_are_of_the_code_that_scores_and_tell_the_one_that_prepared(tmp_path):
    old = "navsim_score 0.0.1, code 000000000000"
    write_store(tmp_path, [prepared(scenes()["late"], name="late")], replace(MADE, scorer=old))
    found = NavsimSignals(tmp_path)(candidates()[None], ["late"]).provenance
    assert found.scorer == scorer_version() and found.prepared_by == old
    assert str(found).endswith(f"prepared by {old}, {scorer_version()}")


def test_metric_caches_are_stored_by_token_and_paired_by_log_and_time(tmp_path, monkeypatch):
    [plan] = Scorer([scenes()["human_hits"]]).plans
    caches = {}
    # The devkit's pairs are at most 0.55 s apart, and have no synthetic scenes.
    times = {"now": 7.0, "synthetic": 7.25, "next": 7.5, "far": 8.0625, "near": 8.5625, "beside": 8.5625}
    for token, seconds in times.items():
        caches[token] = cache_of(scenes()["human_hits"], plan)
        if token in ("synthetic", "beside"):
            caches[token].human_trajectory = None
        caches[token].ego_state.time_us = round(seconds * 1e6)
        shift = caches[token].ego_state.time_us - 7_000_000
        for state in caches[token].past_human_trajectory.get_sampled_trajectory()[:-1]:
            state.time_us += shift
        folder = tmp_path / "metric_cache" / "a_log" / "unknown" / token
        folder.mkdir(parents=True)
        (folder / "metric_cache.pkl").touch()
    monkeypatch.setattr(preparing, "read_cache", lambda path: caches[path.parent.name])
    paths = sorted((tmp_path / "metric_cache").rglob("metric_cache.pkl"))
    write_store(tmp_path / "store", map(of_metric_cache, paths), MADE)
    signals = NavsimSignals(tmp_path / "store")
    previous = {name: signals.store.entry(name).previous for name in caches}
    assert previous == dict.fromkeys(times) | {"next": "now", "near": "far"}
    assert signals.store.entry("now").log == "a_log"
    found = signals(candidates()[None], ["now"])
    alone = Scorer([scenes()["human_hits"]])(candidates(), torch.zeros(4, dtype=torch.int64))
    assert torch.allclose(found["epdms"][0], alone.epdms, rtol=0, atol=1e-9)


def test_the_command_stores_scene_files_and_tells_damaged_ones(tmp_path, capsys):
    for name in ("late", "cones"):
        write_scene(replace(scenes()[name], name=name), tmp_path / f"{name}.scene.json")
    (tmp_path / "broken.scene.json").write_text("{")
    arguments = ["store", "--scenes", str(tmp_path), "--out", str(tmp_path / "store")]
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert "Wrote 2 scenes" in told.out and "digest" in told.out
    assert "1 of 3 files could not be stored" in told.err and told.err.count("broken.scene.json") == 1
    assert set(Store(tmp_path / "store").entries) == {"late", "cones"}
    assert main(["store", "--caches", str(tmp_path), "--out", str(tmp_path / "store")]) == 2
    assert "Expected --allow-pickles" in capsys.readouterr().err


def test_scene_files_name_the_frame_before_by_file_or_scene(pair, tmp_path):
    before, after = pair
    for named in ("first", before.name):
        write_scene(before, tmp_path / "first.scene.json")
        write_scene(replace(after, previous=named), tmp_path / "second.scene.json")
        assert main(["store", "--scenes", str(tmp_path), "--out", str(tmp_path / "store")]) == 0
        assert Store(tmp_path / "store").entry(after.name).previous == before.name
    # A name that two folders' files share names no file.
    copies = [(replace(prepared(before)[0], name=name, file="same"), prepared(before)[1]) for name in ("a", "b")]
    entry, content = prepared(after)
    write_store(tmp_path / "two", [*copies, (replace(entry, previous="same"), content)], MADE)
    assert Store(tmp_path / "two").entry(after.name).previous == "same"


def test_a_store_that_fails_leaves_the_earlier_one(tmp_path):
    entry, content = prepared(scenes()["late"], name="late")
    known = write_store(tmp_path, [(entry, content)], MADE)

    def cut():
        yield replace(entry, name="other"), content
        raise OSError("no space")

    for scenes_to_come, error in (([(entry, content)] * 2, InputError), ([], InputError), (cut(), OSError)):
        with pytest.raises(error):
            write_store(tmp_path, scenes_to_come, MADE)
        assert Store(tmp_path).provenance == known and set(Store(tmp_path).entries) == {"late"}


def test_a_store_is_opened_anew_in_another_process(stored, monkeypatch, tmp_path):
    monkeypatch.chdir(stored.parent)
    signals = NavsimSignals(stored.name)
    content = pickle.dumps(signals)
    assert len(content) < 1000  # not the scenes
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(content)
    plans = candidates()[None]
    assert torch.equal(again(plans, ["late"])["epdms"], signals(plans, ["late"])["epdms"])


def threads(path):
    return replace(prepared(scenes()["late"], name=path.name)[0], size=torch.get_num_threads()), b""


@pytest.mark.slow
def test_each_worker_has_one_thread(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    paths = [Path(name) for name in "ab"]
    assert [entry.size for entry, _ in preparing.prepare(threads, paths, 2, [])] == [1, 1]


def test_unusable_stores_and_calls_are_told_in_one_line(stored, tmp_path):
    refused = partial(refusals.refused, kind=InputError)
    assert "navsim_score store" in refused(Store, tmp_path)
    two = [prepared(scenes()["late"], name="same")] * 2
    assert "'same' twice; nothing was stored" in refused(write_store, tmp_path, two, MADE)
    files = [(replace(entry, file=name), record) for name, (entry, record) in zip("ab", two, strict=True)]
    assert "'same' twice, in the files a and b;" in refused(write_store, tmp_path, files, MADE)
    assert "at least one scene" in refused(write_store, tmp_path, [], MADE)
    write_store(tmp_path, two[:1], MADE)
    whole = (tmp_path / RECORDS).read_bytes()
    (tmp_path / RECORDS).write_bytes(whole[:-8])
    assert f"to have {len(whole):,} bytes" in refused(Store, tmp_path)
    (tmp_path / RECORDS).unlink()
    assert "but got 0," in refused(Store, tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | {"format": []}))
    assert "of this version" in refused(Store, tmp_path)
    for damaged in ({"provenance": {"source": "x"}}, {"provenance": 1}, {"scenes": [{"name": "a"}]}, {"scenes": None}):
        (tmp_path / "index.json").write_text(json.dumps(index | damaged))
        assert "is damaged" in refused(Store, tmp_path)
    signals = NavsimSignals(stored)
    assert "Did you mean 'late'?" in refused(signals, candidates()[None], ["lat"])
    assert "[B, G, P, 3]" in refused(signals, candidates(), ["late"])
    assert "one previous scene per token" in refused(signals, candidates()[None], ["late"], [])


@pytest.mark.parametrize(("apart", "paired"), [(0.0, False), (0.55, True), (0.5501, False)])
def test_a_pair_of_frames_is_at_most_the_devkits_seconds_apart(tmp_path, apart, paired):
    entry, content = prepared(scenes()["late"], name="before")
    frames = {"before": 0.0, "after": apart}
    made = [(replace(entry, name=name, log="a", seconds=at), content) for name, at in frames.items()]
    write_store(tmp_path, made, MADE)
    assert Store(tmp_path).entry("after").previous == ("before" if paired else None)
