"""Every target has an answer for every operator: a form of its own, the value, or that it cannot."""

from __future__ import annotations

import pytest

from kaicep.errors import Unsupported
from kaicep.plan.expressions import Call, Field
from kaicep.plan.operators import FUNCTIONS, OPERATORS, Nulls, TypeRule, apply, express
from kaicep.plan.types import Type
from kaicep.reference import expressions as reference


def test_the_reference_evaluates_every_operator_by_itself() -> None:
    own = {op for op, row in OPERATORS.items() if row.nulls is Nulls.OWN}
    assert reference._WITH_NULLS.keys() == own
    assert reference._WITHOUT_NULLS.keys() == OPERATORS.keys() - own


def test_the_fast_forms_are_of_operators_that_there_are() -> None:
    from kaicep.history.hybrid import _ARROW
    from kaicep.kernel.assemble import _TRUTHS, _VALUES
    from kaicep.kernel.vectors import _CHOICES, _COLUMNS, _TESTS

    for table in (_ARROW, _TRUTHS, _VALUES, _CHOICES, _COLUMNS, dict.fromkeys(_TESTS)):
        assert table.keys() <= OPERATORS.keys()


def test_what_sees_nulls_has_a_form_in_every_kernel_table() -> None:
    """The default goes by the value, where a null makes null; the others need a form."""
    from kaicep.kernel.assemble import _TRUTHS, _VALUES
    from kaicep.kernel.vectors import _CHOICES, _TESTS

    own = {op for op, row in OPERATORS.items() if row.nulls is Nulls.OWN}
    assert own <= _TRUTHS.keys() | _VALUES.keys()
    assert own <= _CHOICES.keys() | set(_TESTS)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("target", ["sql", "sparql"])
def test_a_language_says_an_operator_or_that_it_cannot(op: str, target: str) -> None:
    row = OPERATORS[op]
    types = (
        [row.takes[min(i, len(row.takes) - 1)].types[-1] for i in range(row.least)]
        if (not isinstance(row.takes, TypeRule))
        else [Type.FLOAT64] * max(row.least, 2)
    )
    fields = tuple(Field("e", "x", (), each) for each in types)
    call = Call(op, fields, row.gives or types[0])
    texts = [f"<{number}>" for number in range(len(types))]
    if getattr(row, target) is None:
        with pytest.raises(Unsupported, match="cannot express"):
            express(target, call, texts, "q")
        return
    said = express(target, call, texts, "q")
    assert all(each in said for each in texts)


def test_a_text_of_another_language_has_an_end() -> None:
    call = Call("coalesce", (), Type.STRING)
    with pytest.raises(Unsupported, match="reasonable length"):
        express("sql", call, ["x" * 1_000_001], "q")


def test_every_row_says_what_it_is() -> None:
    for row in OPERATORS.values():
        assert row.doc
        assert not row.doc.endswith(".")
        assert row.most is None or row.least <= row.most
    assert FUNCTIONS.keys() <= OPERATORS.keys()


def test_a_null_makes_null_unless_the_row_has_its_own_rule() -> None:
    for op, row in OPERATORS.items():
        if row.nulls is Nulls.SPREAD:
            assert apply(Call(op, ()), (None,) * row.least) is None
