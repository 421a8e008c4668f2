"""The comparison of the expected objects of a table with its actual ones: pure, for any objects and names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.targets.postgresql.schema.constraints import (
    CHECK,
    COLUMN,
    DEFAULT,
    INDEX,
    KEY,
    REFERENCE,
    REQUIRED,
    RULES,
    ObjectCategory,
    ObjectPlace,
    ObjectProblem,
    TableObject,
    compare_objects,
)

#: Each category, its kind, and whether the definition identifies an object: then it is the same under another name.
CATEGORIES = {
    ObjectCategory.COLUMN: (COLUMN, False),
    ObjectCategory.REQUIRED: (REQUIRED, False),
    ObjectCategory.DEFAULT: (DEFAULT, False),
    ObjectCategory.KEY: (KEY, True),
    ObjectCategory.UNIQUE: (INDEX, True),
    ObjectCategory.INDEX: (INDEX, True),
    ObjectCategory.CHECK: (CHECK, True),
    ObjectCategory.REFERENCE: (REFERENCE, True),
}


def part(category: ObjectCategory, number: int) -> TableObject:
    kind, unnamed = CATEGORIES[category]
    definition = f"{category.name} {number}" if unnamed or category is ObjectCategory.DEFAULT else ""
    name = f"{kind}{number}"
    return TableObject(
        kind=kind,
        category=category,
        shown=name,
        name=name,
        names=frozenset({name, f"other_{name}"}),
        definition=definition,
        add=f"ADD {name}",
        drop=f"DROP {name}",
    )


PARTS = st.lists(
    st.builds(part, st.sampled_from(sorted(CATEGORIES, key=lambda s: s.name)), st.integers(0, 30)),
    unique_by=lambda p: (p.kind, p.name),
    min_size=1,
)


def existing_objects(parts: list[TableObject]) -> dict[ObjectPlace, str]:
    return {(p.kind, p.name): p.definition for p in parts}


@given(PARTS, st.booleans())
def test_a_complete_table_does_not_differ(parts: list[TableObject], exact: bool) -> None:
    assert compare_objects(parts, existing_objects(parts), exact=exact) == []


@given(PARTS, st.data())
def test_a_removed_object_is_missing_and_nothing_else(parts: list[TableObject], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(range(len(parts)))))
    left = existing_objects([p for n, p in enumerate(parts) if n not in gone])
    found = compare_objects(parts, left, exact=True)
    wanted = [p for n, p in enumerate(parts) if n in gone]
    assert [(d.part, d.problem, d.statement) for d in found] == [(p, ObjectProblem.MISSING, p.add) for p in wanted]
    assert [d.blocks for d in found] == [
        p.category not in (ObjectCategory.INDEX, ObjectCategory.DEFAULT) for p in wanted
    ]


@given(PARTS, st.data())
def test_an_altered_object_counts_as_another_one(parts: list[TableObject], data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(parts))
    table = existing_objects(parts)
    table[one.kind, one.name] = "something else"
    found = compare_objects(parts, table, exact=True)
    if one.definition and (one.category, ObjectProblem.ALTERED) in RULES:
        assert [(d.part, d.problem) for d in found] == [(one, ObjectProblem.ALTERED)]
        assert found[0].statement == f"{one.drop}; {one.add}"
    else:
        assert found == []


@given(PARTS, st.permutations(range(31)))
def test_names_do_not_matter_where_the_definition_identifies_an_object(
    parts: list[TableObject], names: list[int]
) -> None:
    unnamed = [p for p in parts if CATEGORIES[p.category][1]]
    table = {(p.kind, f"{p.kind}{names[int(p.name.removeprefix(p.kind))]}"): p.definition for p in unnamed}
    assert compare_objects(unnamed, table, exact=True) == []


@given(PARTS, PARTS)
def test_objects_of_the_target_alone_are_listed_and_never_forbid(
    parts: list[TableObject], more: list[TableObject]
) -> None:
    definitions = {p.definition for p in parts}
    own = [p for p in more if (p.kind, p.name) not in existing_objects(parts) and p.definition not in definitions]
    found = compare_objects(
        parts, existing_objects(parts) | existing_objects(own), {(p.kind, p.name): p for p in own}, exact=True
    )
    listed = [p for p in own if (p.category, ObjectProblem.EXTRA) in RULES]
    assert [(d.part, d.problem, d.statement) for d in found] == [(p, ObjectProblem.EXTRA, p.drop) for p in listed]
    assert not any(d.blocks for d in found)


def test_a_name_that_a_load_may_have_given_counts_where_definitions_cannot_be_compared() -> None:
    one = part(ObjectCategory.CHECK, 1)
    table = {(CHECK, "other_c1"): "spelled otherwise"}
    assert compare_objects([one], table, exact=False) == []
    assert [d.problem for d in compare_objects([one], table, exact=True)] == [ObjectProblem.MISSING]
