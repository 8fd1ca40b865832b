"""Draw the package as a house, from its imports: ``python docs/house.py`` writes docs/house.png and prints the plan.

A room is a folder of lightning_cgrpo, or a file directly in it. A room stands above every room that it imports.
The packages driving_scenes and navsim_score stand beside the house.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grimp
import matplotlib
import networkx as nx

matplotlib.use("agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PACKAGE = "lightning_cgrpo"
GROUND = "#eceff1"
WINGS = {
    "the method": ("#c8e6c9", "objective grpo multipliers modules callbacks"),
    "language models and rollouts": ("#bbdefb", "policies samplers"),
    "tasks and data": ("#ffe0b2", "tasks datamodules"),
    "a run": ("#ffccbc", "settings run"),
    "commands": ("#e1bee7", "__main__ cli"),
}


def rooms() -> tuple[nx.DiGraph, nx.DiGraph, dict[str, int]]:
    """Imports between rooms, imports between files, and the lines of every room."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    files, house = nx.DiGraph(), nx.DiGraph()
    lines: dict[str, int] = {}
    for module in graph.modules - {PACKAGE}:
        path = ROOT / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        name = module.split(".")[1]
        lines[name] = lines.get(name, 0) + len(path.read_text(encoding="utf-8").splitlines())
        house.add_node(name)
        for imported in graph.find_modules_directly_imported_by(module) - {PACKAGE}:
            files.add_edge(module, imported)
            if imported.split(".")[1] != name:
                house.add_edge(name, imported.split(".")[1])
    return house, files, lines


def floors(house: nx.DiGraph) -> dict[str, int]:
    """The floor of every room, from 0: one above the highest room that it imports."""
    floor: dict[str, int] = {}
    for room in reversed(list(nx.topological_sort(house))):
        floor[room] = max((floor[imported] + 1 for imported in house[room]), default=0)
    return floor


def draw(house: nx.DiGraph, lines: dict[str, int], floor: dict[str, int], file: Path) -> None:
    """Boxes on floors; an arrow that follows from two others is left out."""
    colors = {room: color for color, names in WINGS.values() for room in names.split()}
    figure, axes = plt.subplots(figsize=(12, 9))
    centers = {}
    for level in range(max(floor.values()) + 1):
        row = sorted((room for room in floor if floor[room] == level), key=lambda room: colors.get(room, "~"))
        widths = [1.2 + lines[room] / 1600 for room in row]
        left = -(sum(widths) + 0.6 * (len(row) - 1)) / 2
        for room, width in zip(row, widths, strict=True):
            axes.add_patch(
                plt.Rectangle(
                    (left, level), width, 0.5, facecolor=colors.get(room, GROUND), edgecolor="#455a64", zorder=2
                )
            )
            axes.text(left + width / 2, level + 0.25, f"{room}\n{lines[room]:,}", ha="center", va="center", fontsize=8)
            centers[room] = left + width / 2
            left += width + 0.6
    for above, below in nx.transitive_reduction(house).edges:
        axes.annotate(
            "",
            xy=(centers[below], floor[below] + 0.5),
            xytext=(centers[above], floor[above]),
            arrowprops={"arrowstyle": "->", "color": "#78909c", "linewidth": 0.8},
            zorder=1,
        )
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=color, label=name) for name, (color, _) in WINGS.items()]
    handles.append(plt.Rectangle((0, 0), 1, 1, facecolor=GROUND, label="ground: shared by all"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncol=6, fontsize=8, frameon=False)
    axes.autoscale_view()
    axes.set_axis_off()
    axes.set_title(f"{PACKAGE}: rooms with their lines; a room imports from the floors below", fontsize=10)
    figure.savefig(file, dpi=110, bbox_inches="tight")


def main() -> None:
    """Print the plan, and write the picture."""
    house, files, lines = rooms()
    circles = [
        circle for graph in (house, files) for circle in nx.strongly_connected_components(graph) if len(circle) > 1
    ]
    biggest = max(lines, key=lambda room: lines[room])
    print(f"{len(house)} rooms, {house.number_of_edges()} arrows, {len(circles)} circles")
    print(f"the biggest room: {biggest}, {lines[biggest] / sum(lines.values()):.0%} of {sum(lines.values()):,} lines")
    for circle in circles:
        print("A circle:", ", ".join(sorted(circle)))
    if not circles:
        floor = floors(house)
        for level in range(max(floor.values()), -1, -1):
            print(f"floor {level}: {', '.join(sorted(room for room in floor if floor[room] == level))}")
        draw(house, lines, floor, Path(__file__).with_name("house.png"))


if __name__ == "__main__":
    main()
