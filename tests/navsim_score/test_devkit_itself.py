"""The devkit's own scripts, where it is installed, on the drive of made_up_drive.py as log and nuPlan map."""

import csv
import json
import pickle
import sys
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from driving_scenes.devkit import NavsimDevkit, source
from driving_scenes.devkit.installation import OfficialSplit
from driving_scenes.scene_file import write_scene
from navsim_score.columns import COLUMNS, EXTENDED_COMFORT
from navsim_score.command import main
from navsim_score.command.submission import Authors, read_submission, write_submission
from tests.driving_scenes.devkit_files import set_variables, write_log
from tests.driving_scenes.made_up_drive import MAP, frames
from tests.driving_scenes.scenes import straight

pytest.importorskip("navsim", reason="NAVSIM's devkit isn't installed")
pytest.importorskip("hydra", reason="The devkit's requirements aren't installed")

LOG, SPLIT = "2021.a", "warmup_two_stage"
NOW, BEFORE = f"{LOG}-4", f"{LOG}-3"
FOLLOW_UPS = [["now-a".ljust(17, "x"), "before-a".ljust(17, "x")], ["now-b".ljust(17, "x"), "before-b".ljust(17, "x")]]
"""Of a scene and of the scene before it."""
TOKENS = [token for pair in FOLLOW_UPS for token in pair]
ABOUT = ["team_name=a", "authors=b", "email=c", "institution=d", "country=e"]
TOWNS = ("sg-one-north", "us-ma-boston", "us-nv-las-vegas-strip", "us-pa-pittsburgh-hazelwood")
LAYERS = {
    "lanes_polygons": ["11"],
    "lane_connectors": ["12"],
    "gen_lane_connectors_scaled_width_polygons": ["12"],
    "baseline_paths": ["11", "12"],
    "lane_groups_polygons": ["1"],
    "lane_group_connectors": ["2"],
    "intersections": ["5"],
    "carpark_areas": ["6"],
    "boundaries": ["5"],
    "stop_polygons": ["5"],
}
"""Of nuPlan's maps, with the ids of `MAP`."""


def write_town(folder):
    """Write `MAP` as nuPlan's map; the devkit opens the maps of all towns."""
    import geopandas
    import pandas
    import shapely

    items = {item["id"]: item for kind in MAP.values() for item in kind}
    links = {"lane_group_fid": 1, "lane_group_connector_fid": 2, "from_lane_group_fid": 1, "to_lane_group_fid": 0}
    links |= {"exit_lane_fid": 11, "entry_lane_fid": 0, "lane_index": 0}
    for town in TOWNS:
        path = folder / town / "1" / "map.gpkg"
        path.parent.mkdir(parents=True)
        for layer, ids in LAYERS.items():
            rows = [
                {
                    "fid": int(name),
                    "lane_fid": int(name) * (name == "11"),
                    "lane_connector_fid": int(name) * (name == "12"),
                    "speed_limit_mps": items[name].get("speed_limit"),
                    "geometry": shapely.LineString(items[name]["centerline"])
                    if layer == "baseline_paths"
                    else shapely.Polygon(items[name]["polygon"]),
                    **links,
                }
                for name in ids
            ]
            geopandas.GeoDataFrame(rows, crs="EPSG:32611").to_file(path, layer=layer, engine="pyogrio", FID="fid")
        about = pandas.DataFrame({"key": ["projectedCoordSystem"], "value": ["EPSG:32611"], "geometry": [None]})
        geopandas.GeoDataFrame(about, crs="EPSG:32611").to_file(path, layer="meta", engine="pyogrio")
    (folder / "nuplan-maps-v1.0.json").write_text(json.dumps({town: {"version": "1"} for town in TOWNS}))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a script of the devkit, whose data are a log, its follow-ups and the metric caches of all."""
    from navsim.common import dataclasses

    set_variables(monkeypatch, tmp_path)
    monkeypatch.setattr(dataclasses, "NUPLAN_MAPS_ROOT", str(tmp_path / "maps"))
    write_log(tmp_path, "test", LOG)
    write_town(tmp_path / "maps")
    synthetic = tmp_path / "data" / SPLIT / "synthetic_scene_pickles"
    synthetic.mkdir(parents=True)
    for start, token in zip((1, 0, 2, 1), TOKENS, strict=True):
        part = [frame | {"token": f"{token}-{row}"} for row, frame in enumerate(frames(LOG)[start : start + 12])]
        part[3]["token"] = token
        scene = dataclasses.Scene.from_scene_dict_list(part, None, 4, 8, dataclasses.SensorConfig.build_no_sensors())
        about = {"scene_token": token, "corresponding_original_scene": f"{LOG}-12"}
        replace(scene, scene_metadata=replace(scene.scene_metadata, **about)).save_to_disk(synthetic)
    chosen = {"log_names": [LOG], "tokens": [NOW, BEFORE], "synthetic_scene_tokens": TOKENS}
    chosen |= {"reactive_synthetic_initial_tokens": TOKENS}
    pairs = [[NOW, BEFORE, FOLLOW_UPS]]
    arguments = {"num_future_frames": 8, "frame_interval": 1, "include_synthetic_scenes": True} | chosen
    monkeypatch.setattr(source, "read_split", lambda name: OfficialSplit(name, "test", arguments, pairs))
    overrides = [f"train_test_split={SPLIT}", f"train_test_split.reactive_all_mapping={pairs}".replace("'", "")]
    overrides += [f"++train_test_split.scene_filter.{key}={value}".replace("'", "") for key, value in chosen.items()]
    overrides += [f"synthetic_scenes_path={synthetic}", "worker=sequential"]
    replay = "traffic_agents_policy.reactive=${traffic_agents_policy.non_reactive}"

    def script(name, *more):
        out = tmp_path / "out"
        policy = [replay] if "submission" in name else []
        monkeypatch.setattr(sys, "argv", [name, *overrides, f"output_dir={out}", *policy, *more])
        import_module(f"navsim.planning.script.{name}").main()
        return {row["token"]: row for path in out.glob("*.csv") for row in csv.DictReader(path.open())}

    monkeypatch.setattr(sys, "argv", ["", *overrides])
    import_module("navsim.planning.script.run_metric_caching").main()
    return script


def score(folder, submission, capsys, *options):
    """Our scores of the devkit's scenes, by token, and what the command prints."""
    scenes = NavsimDevkit(SPLIT, None, 0.0, allow_pickles=True).scenes("train")
    for scene in scenes:
        write_scene(scene, folder / f"{scene.name}.scene.json")
    capsys.readouterr()
    main(["--scenes", str(folder), "--trajectories", str(submission), "--out", str(folder / "s.json"), *options])
    return {token: row for token, [row] in json.loads((folder / "s.json").read_text()).items()}, capsys.readouterr().out


def assert_same(ours, theirs):
    """All sub-scores of a row of the devkit's table."""
    for name in (*COLUMNS, EXTENDED_COMFORT):
        values = [float(theirs[key]) for key in theirs if key.startswith(name) and theirs[key]]
        if ours[name] is not None:  # the devkit gives both frames of a pair the comfort between them
            assert values == [pytest.approx(ours[name], abs=1e-6)], name


def test_the_devkit_scores_our_submission_as_we_do(run, tmp_path, capsys):
    """Both stages; trajectories of 8 and of 40 poses."""
    slow = straight(0.1).double()
    fine = torch.stack([torch.linspace(0.5, 20, 40), torch.linspace(0, 0.8, 40), torch.zeros(40)], 1).double()
    second = {token: straight(6.0, 0.3).double() if row % 2 else fine for row, token in enumerate(TOKENS)}
    submission, first = tmp_path / "submission.pkl", {NOW: slow, BEFORE: fine}
    write_submission(submission, Authors(*"abcde"), first, second, [*first, *TOKENS])
    official = run("run_pdm_score_from_submission", f"submission_file_path={submission}")
    ours, printed = score(tmp_path, submission, capsys)
    assert len(ours) == 6
    for token, row in ours.items():
        assert official[token]["valid"] == "True"
        assert_same(row, official[token])
        if row[EXTENDED_COMFORT] is not None:
            assert row["epdms"] == pytest.approx(float(official[token]["score"]), abs=1e-6)
    rows = [line.split() for line in printed.splitlines()]
    lines = [row for row in rows if row and row[0] in ("S1", "S2", "both") and row[-1][0].isdigit()]
    totals = [official[f"extended_pdm_score_{stage}"]["score"] for stage in ("stage_one", "stage_two", "combined")]
    assert [line[-1] for line in lines] == [f"{float(total):.3f}" for total in totals]


def test_we_read_what_the_devkit_writes(run, tmp_path, capsys):
    """Its submissions of version 2, and of version 1; scores of one stage have the mean of its script."""
    run("run_create_submission_pickle", *ABOUT)
    path = tmp_path / "out" / "submission.pkl"
    candidates = read_submission(path)
    assert set(candidates) == {NOW, BEFORE, *TOKENS}
    content = pickle.loads(path.read_bytes())
    [plans], [later] = content.pop("first_stage_predictions"), content.pop("second_stage_predictions")
    for token, plan in (plans | later).items():
        [candidate] = candidates[token]
        assert torch.equal(candidate.poses, torch.from_numpy(plan.poses).double())
    path.write_bytes(pickle.dumps(content | {"predictions": [plans]}))
    assert set(read_submission(path)) == {NOW, BEFORE}
    official = run("run_pdm_score_one_stage", "++train_test_split.scene_filter.include_synthetic_scenes=false")
    ours, printed = score(tmp_path, path, capsys, "--dialect", "epdms_valid")
    for token, row in ours.items():
        assert_same(row, official[token])
        assert row["epdms"] == pytest.approx(float(official[token]["score"]), abs=1e-6)
    mean = float(official["average_all_frames"]["score"])
    assert f"EPDMS of valid rows, one stage, LogReplay: mean {mean:.4f} of 2 rows" in " ".join(printed.split())


def test_frames_of_one_stage_are_paired_as_the_devkit_pairs_them(run, tmp_path, capsys, monkeypatch):
    """By log and time, as no split of one stage names pairs."""
    run("run_create_submission_pickle", *ABOUT)
    official = run("run_pdm_score_one_stage", "++train_test_split.scene_filter.include_synthetic_scenes=false")
    chosen = {"num_future_frames": 8, "frame_interval": 1, "log_names": [LOG], "tokens": [NOW, BEFORE]}
    monkeypatch.setattr(source, "read_split", lambda name: OfficialSplit(name, "test", chosen, []))
    ours, _ = score(tmp_path, tmp_path / "out" / "submission.pkl", capsys)
    assert set(ours) == {NOW, BEFORE} and ours[NOW][EXTENDED_COMFORT] is not None
    for token, row in ours.items():
        assert_same(row, official[token])
        assert row["epdms"] == pytest.approx(float(official[token]["score"]), abs=1e-6)
