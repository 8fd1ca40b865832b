"""Names of scene files."""

SCENE_SUFFIX = ".scene.json"
