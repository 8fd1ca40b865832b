"""Values of environment variables, which may be secrets: what a run writes keeps ``${oc.env:NAME}`` instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SHORTEST = 6
"""Characters of a value that is also replaced inside of other texts; shorter values are no secrets."""

Place = tuple[Any, ...]
"""Keys from the top of a configuration to a value."""


class EnvironmentValues:
    """The values of a configuration that come from the environment.

    Args:
        config: a merged configuration, interpolations unresolved.
        resolved: the same, resolved.
    """

    def __init__(self, config: Mapping[str, Any], resolved: Mapping[str, Any]) -> None:
        self._texts: dict[Place, str] = {}
        self._values: dict[str, str] = {}
        if "oc.env" not in repr(config):
            return
        before, values = dict(_leaves(config)), dict(_leaves(resolved))
        for place, text in _leaves(_resolved_but_for_the_environment(config)):
            value = values.get(place)
            if value != text and isinstance(text, str):
                self._texts[place] = before[place] if isinstance(before.get(place), str) else text
                if isinstance(value, str) and len(value) >= SHORTEST:
                    self._values[value] = text

    def __bool__(self) -> bool:
        return bool(self._texts)

    def hidden(self, content: Any, place: Place = ()) -> Any:
        """Plain containers with the interpolations in the places of the values."""
        if place in self._texts:
            return self._texts[place]
        if isinstance(content, Mapping):
            return {key: self.hidden(value, (*place, key)) for key, value in content.items()}
        if isinstance(content, list | tuple):
            return type(content)([self.hidden(value, (*place, number)) for number, value in enumerate(content)])
        if isinstance(content, str):
            for value, text in self._values.items():
                content = content.replace(value, text)
        return content

    def hidden_yaml(self, text: str) -> str:
        """A configuration in YAML with the interpolations; its first comment stays."""
        import yaml

        if not self:
            return text
        comment = text[: text.index("\n") + 1] if text.startswith("#") else ""
        hidden: str = yaml.safe_dump(self.hidden(yaml.safe_load(text)), sort_keys=False, allow_unicode=True)
        return comment + hidden


def _resolved_but_for_the_environment(config: Mapping[str, Any]) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.resolvers.oc import env

    def text(name: str, *default: Any) -> str:
        return f"${{oc.env:{','.join(map(str, (name, *default)))}}}"

    OmegaConf.register_resolver("oc.env", text, replace=True, annotation_validation="off")
    try:
        return OmegaConf.to_container(OmegaConf.create(dict(config)), resolve=True)
    finally:
        OmegaConf.register_resolver("oc.env", env, replace=True, annotation_validation="off")


def _leaves(content: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _leaves(value, (*place, key))
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _leaves(value, (*place, number))
    else:
        yield place, content
