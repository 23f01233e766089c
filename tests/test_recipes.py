"""The recipes of docs/recipes.md: each query gives the answer that stands below it, the mistakes too.

A section has events (`csv STREAM`), knowledge (`turtle`), annotations (`json`) and queries (`chi NAME`).
A block `text matches` is the answer of the queries since the last such block.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kaicep.testing import check, parse_table, run

PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"
FENCE = re.compile(r"^```(\w+) ?([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Recipe(NamedTuple):
    """Queries of one section, the section's data, and the answer that is shown."""

    events: dict[str, str]
    knowledge: str
    annotations: list[dict[str, Any]]
    queries: dict[str, str]
    answer: str


def recipes() -> list[object]:
    found: list[object] = []
    for section in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        blocks = [(each[1], each[2], each[3]) for each in FENCE.finditer(section)]
        events = {name: text.replace(",", " | ") for kind, name, text in blocks if kind == "csv"}
        knowledge = "\n".join(text for kind, _, text in blocks if kind == "turtle")
        annotations = [json.loads(text) for kind, _, text in blocks if kind == "json"]
        queries: dict[str, str] = {}
        for kind, name, text in blocks:
            if kind == "chi":
                queries[f"{name}.chi"] = text
            elif (kind, name) == ("text", "matches"):
                recipe = Recipe(events, knowledge, annotations, queries, text)
                found.append(pytest.param(recipe, id=" ".join(queries)))
                queries = {}
        assert not queries, f"no answer to {', '.join(queries)}"
    return found


@pytest.mark.parametrize("host", ["reference", "inprocess"])
@pytest.mark.parametrize("recipe", recipes())
def test_a_recipe_gives_the_answer_that_is_shown(recipe: Recipe, host: str) -> None:
    """One query in every order of arrival; of several that read each other, the last one's matches."""
    given: dict[str, Any] = {"knowledge": recipe.knowledge, "annotations": recipe.annotations, "host": host}
    if len(recipe.queries) == 1:
        check(recipe.queries, recipe.events, recipe.answer, **given)
        return
    shown = parse_table(recipe.answer)
    last = list(recipe.queries)[-1].removesuffix(".chi")
    matches = [each for each in run(recipe.queries, recipe.events, **given) if each.query == last]
    found = [{name: str(match.select[name]) for name in shown[0]} for match in matches]
    assert sorted(found, key=str) == sorted(shown, key=str)


def test_every_recipe_names_the_mistake_to_avoid() -> None:
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(sections) == 11
    assert not [each.splitlines()[0] for each in sections if "**The mistake.**" not in each]
