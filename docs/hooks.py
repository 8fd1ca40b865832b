"""Add the README, linked files and the API reference to the site of `mkdocs.yml`."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = "lightning_cgrpo"
PACKAGES = (PACKAGE, "navsim_score", "driving_scenes")
LINK = re.compile(r"(```.*?```|`[^`\n]*`)|(\]\()([^)\s#]+)((?:#[^)\s]*)?\))", re.DOTALL)
EQUATION = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)
CELL = re.compile(r"<(t[hd])\b.*?</\1>", re.DOTALL)
OPTION = re.compile(r"(?<=[\s>])--[a-z][\w-]*")
LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".jsonl": "json"}

API: dict[str, tuple[str, ...]] = {
    "Training": ("modules", "cli.loading.load"),
    "Objective": ("objective.constraint.Constraint", "objective.objective", "objective.look.Look",
                  "objective.behavior_rate", "objective.evaluation.Evaluation", "objective.bound",
                  "objective.selection", "objective.constraint.ObjectiveError", "core.errors.UserError"),
    "Multipliers": ("multipliers", "objective.units"),
    "Callbacks": ("callbacks",),
    "Data": ("datamodules", "core.rollout", "core.prompts"),
    "Tasks": ("tasks",),
    "Samplers": ("samplers",),
    "Policies": ("policies",),
    "Advantages and losses": ("grpo",),
    "Critics": ("grpo.critic",),
    "Verdicts": ("objective.verdicts.verdict", "objective.verdicts.binomial", "objective.verdicts.clustered",
                 "objective.verdicts.holm", "objective.verdicts.ratio"),
    "Driving": ("navsim_score.scorer", "navsim_score.drop_in", "navsim_score.dialects", "navsim_score.evaluation",
                "navsim_score.two_stage", "navsim_score", "driving_scenes"),
}  # fmt: skip
"""Pages of the API reference. An entry is a name, a file with its public names, or a folder with its exported names.

Entries without a package are inside `lightning_cgrpo`.
"""


def module_of(room: str) -> str:
    """Dotted path of an entry of `API`."""
    return room if room.partition(".")[0] in PACKAGES else f"{PACKAGE}.{room}"


def defined(file: Path) -> list[str]:
    """Public classes and documented functions of a file."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, kinds) and not node.name.startswith("_") and ast.get_docstring(node)
    ]


def exported() -> dict[str, str]:
    """Modules of all names that the package or an `__init__` file of the folders in `API` exports."""
    modules: dict[str, str] = {}
    tree = ast.parse((ROOT / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_EXPORTS":
            modules |= ast.literal_eval(node.value)
    folders = []
    for rooms in API.values():
        folders += [ROOT / module_of(room).replace(".", "/") for room in rooms]
    for init in sorted(file for folder in folders for file in folder.rglob("__init__.py")):
        for node in ast.parse(init.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in PACKAGES:
                folder = ROOT / str(node.module).replace(".", "/")
                for alias in node.names:
                    is_module = (folder / f"{alias.name}.py").is_file()
                    if alias.name != "main" and not is_module:
                        modules[alias.name] = str(node.module)
    return modules


def api_pages() -> dict[str, str]:
    """Markdown of the API reference, by path.

    Raises:
        PluginError: an exported name is on no page.
    """
    names = exported()
    left, pages, index = set(names), {}, []
    for title, rooms in API.items():
        shown: list[str] = []
        for room in rooms:
            module = module_of(room)
            path = ROOT / module.replace(".", "/")
            if path.is_dir():
                home = f"{module}."
                found = sorted((name, module) for name, module in names.items() if f"{module}.".startswith(home))
            elif (file := path.with_suffix(".py")).is_file():
                found = [(name, module) for name in defined(file)]
            else:
                found = [(path.name, module.rpartition(".")[0])]
            for name, source in found:
                left.discard(name)
                full = f"{definition(source, name)}.{name}"
                if full not in shown:
                    shown.append(full)
        page = f"{title.lower().replace(' ', '_')}.md"
        pages[f"api/{page}"] = f"# {title}\n\n" + "\n\n".join(f"::: {name}" for name in shown) + "\n"
        listed = ", ".join(f"[`{name.rpartition('.')[2]}`]({page}#{name})" for name in shown)
        index.append(f"- [{title}]({page}): {listed}")
    if left:
        raise PluginError(
            f"Expected docs/hooks.py to have a page for every exported name, but {sorted(left)} have none."
        )
    head = (
        "# API reference\n\nGenerated from docstrings. Tensors have their shapes in brackets: B prompts, G answers to "
        "each, T steps, K constraints, J components. Names of `lightning_cgrpo` itself are imported from there: "
        "`from lightning_cgrpo import ConstrainedGRPO`. Configurations name a class by this name, or by its path.\n\n"
    )
    return {"api/index.md": head + "\n".join(index) + "\n", **pages}


def definition(module: str, name: str) -> str:
    """The module that defines a name; an `__init__` file may only import it."""
    init = ROOT / module.replace(".", "/") / "__init__.py"
    if not init.is_file():
        return module
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return definition(str(node.module), name)
    return module


def site_path(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return "repository/" + path if path.endswith(".md") else f"repository/{path}.md"


def repository_path(page: str) -> str:
    """The file of the repository that a page of the site shows."""
    if page == "index.md":
        return "README.md"
    return page.removeprefix("repository/") if page.startswith("repository/") else f"docs/{page}"


def change_links(text: str, page: str, change: Callable[[str], str | None]) -> str:
    """Replace links to files; `change` gets the path in the repository."""
    folder = posixpath.dirname(repository_path(page))

    def replaced(match: re.Match[str]) -> str:
        target = match[3]
        if match[1] or "://" in target or target.startswith("mailto:"):
            return match[0]
        new = change(posixpath.normpath(posixpath.join(folder, target)))
        return match[0] if new is None else f"{match[2]}{new}{match[4]}"

    return LINK.sub(replaced, text)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of the API reference in the navigation."""
    for entry in config.nav or []:
        if entry.get("API reference") == "api/":
            entry["API reference"] = list(api_pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages, and pages of the files that pages link to."""
    for path, text in api_pages().items():
        files.append(File.generated(config, path, content=text))
    waiting = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    known: set[str] = set()

    def note(target: str) -> None:
        if not target.startswith(("docs/", "..")) and (ROOT / target).is_file():
            waiting.append(target)

    for file in files.documentation_pages():
        change_links(file.content_string, file.src_uri, note)
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            change_links(text, site_path(path), note)
        else:
            language = LANGUAGES.get(Path(path).suffix, "text")
            # Search leads to pages that were written for readers.
            text = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n````{language}\n{text.rstrip()}\n````\n"
        files.append(File.generated(config, site_path(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri.startswith("api/"):  # Search shows the pages of a subject before its reference.
        page.meta["search"] = {"boost": 0.1}
        return markdown
    if here.startswith("results"):  # Tables of eleven columns need the width of the table of contents.
        page.meta["hide"] = ["toc"]

    def change(target: str) -> str | None:
        path = site_path(target) if not target.startswith("docs/") else target.removeprefix("docs/")
        return posixpath.relpath(path, here or ".") if files.get_file_from_path(path) else None

    return change_links(markdown, page.file.src_uri, change)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn equations into MathML, link pictures to their full size, and break or join lines where readers would."""
    html = EQUATION.sub(_math, html)
    html = CELL.sub(lambda cell: re.sub(r">[^<]+<", _breaks, cell[0]), html)
    html = OPTION.sub(r'<span class="option">\g<0></span>', html)
    html = re.sub(r'<p>(<img [^>]*src="([^"]+)"[^>]*>)</p>', r'<p><a href="\2">\1</a></p>', html)
    return html.replace("± ", "±\N{NO-BREAK SPACE}")


def _breaks(text: re.Match[str]) -> str:
    """Text of a cell, in which long names may break after _, / and dots."""
    return re.sub(r"(?<=[a-z][_/.])(?=\w)", "<wbr>", text[0])


def _math(equation: re.Match[str]) -> str:
    """MathML, which browsers draw without a script."""
    if equation[1] == "span":
        return convert(unescape(equation[2]))
    return f'<div class="equation">{convert(unescape(equation[2]), display="block")}</div>'
