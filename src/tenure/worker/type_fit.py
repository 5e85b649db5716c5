"""Whether a task's result type fits another task's argument: checked by type hints when a flow is built.

Values are sent as JSON or MessagePack and decoded by the argument's hint, so the encoded forms are compared: a list
fits a tuple, an int fits a float, a dataclass fits another one with the same fields or a dict of them. Every value that
the result's hint allows must be decodable: `int | None` does not fit `int`. Types that cannot be compared (no hint,
Any, a type of the user's own) fit, and are checked when the step runs.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from msgspec import inspect as types

_ARRAYS = (types.ListType, types.SetType, types.FrozenSetType, types.VarTupleType)
_OBJECTS = (types.StructType, types.TypedDictType, types.DataclassType)
_UNJUDGED = (types.AnyType, types.RawType, types.NamedTupleType)


def fits(result: Any, argument: Any) -> bool:
    """Whether a value of the hint `result` can always be decoded as the hint `argument`."""
    return _fits(_info(result), _info(argument), frozenset())


def hint_name(hint: Any) -> str:
    """Return a hint as a user would write it."""
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, type) and not getattr(hint, "__args__", None):
        return hint.__name__
    return str(hint).replace("typing.", "")


def _info(hint: Any) -> types.Type:
    try:
        return types.AnyType() if hint is object else types.type_info(hint)
    except TypeError:
        return types.AnyType()


Pairs = frozenset[tuple[int, int]]
"""Pairs of types that are being compared: types may contain themselves."""


def _fits(result: types.Type, argument: types.Type, open_pairs: Pairs) -> bool:
    result, argument = _bare(result), _bare(argument)
    if isinstance(result, _UNJUDGED) or isinstance(argument, _UNJUDGED):
        return True
    if isinstance(result, types.UnionType):
        return all(_fits(each, argument, open_pairs) for each in result.types)
    if isinstance(argument, types.UnionType):
        return any(_fits(result, each, open_pairs) for each in argument.types)
    for kinds, rule in _RULES:
        if isinstance(result, kinds):
            return rule(result, argument, open_pairs)
    if isinstance(result, types.CustomType) or isinstance(argument, types.CustomType):
        return _custom_fits(result, argument)
    return type(result) is type(argument)


def _bare(info: types.Type) -> types.Type:
    return info.type if isinstance(info, types.Metadata) else info


def _number_fits(result: Any, argument: Any, open_pairs: Pairs) -> bool:
    if isinstance(result, types.IntType):
        return isinstance(argument, (types.IntType, types.FloatType, types.DecimalType))
    return isinstance(argument, (types.FloatType, types.DecimalType))


def _literal_fits(result: types.LiteralType, argument: Any, open_pairs: Pairs) -> bool:
    if isinstance(argument, types.LiteralType):
        return set(result.values) <= set(argument.values)
    if isinstance(argument, types.EnumType):
        return set(result.values) <= {member.value for member in argument.cls}
    kinds: dict[type, Any] = {str: types.StrType, int: (types.IntType, types.FloatType), type(None): types.NoneType}
    return all(isinstance(argument, kinds[type(value)]) for value in result.values)


def _enum_fits(result: types.EnumType, argument: Any, open_pairs: Pairs) -> bool:
    return _literal_fits(types.LiteralType(tuple(member.value for member in result.cls)), argument, open_pairs)


def _array_fits(result: Any, argument: Any, open_pairs: Pairs) -> bool:
    fixed = isinstance(result, types.TupleType)
    items = result.item_types if fixed else (result.item_type,)
    if isinstance(argument, _ARRAYS):
        return all(_fits(each, argument.item_type, open_pairs) for each in items)
    if not isinstance(argument, types.TupleType):
        return False
    if not fixed:
        items *= len(argument.item_types)  # the number of items is checked when it runs
    return len(items) == len(argument.item_types) and all(
        _fits(one, other, open_pairs) for one, other in zip(items, argument.item_types, strict=True)
    )


def _dict_fits(result: types.DictType, argument: Any, open_pairs: Pairs) -> bool:
    if isinstance(argument, types.DictType):
        return _fits(result.key_type, argument.key_type, open_pairs) and _fits(
            result.value_type, argument.value_type, open_pairs
        )
    # The keys are unknown: the values must fit every field.
    return isinstance(argument, _OBJECTS) and all(
        _fits(result.value_type, field.type, open_pairs) for field in argument.fields
    )


def _object_fits(result: Any, argument: Any, open_pairs: Pairs) -> bool:
    if isinstance(argument, types.DictType):
        return all(_fits(field.type, argument.value_type, open_pairs) for field in result.fields)
    if isinstance(result, types.StructType) and result.array_like:
        return isinstance(argument, types.StructType) and argument.cls is result.cls
    if not isinstance(argument, _OBJECTS):
        return False
    pair = (id(result.cls), id(argument.cls))
    if result.cls is argument.cls or pair in open_pairs:
        return True
    given = {field.encode_name: field for field in result.fields}
    return all(
        field.encode_name in given and _fits(given[field.encode_name].type, field.type, open_pairs | {pair})
        for field in argument.fields
        if field.required or field.encode_name in given
    )


def _custom_fits(result: types.Type, argument: types.Type) -> bool:
    """Compare types with their own encoders: the same class, a base class of it, or undecidable before a run."""
    if isinstance(result, types.CustomType) and isinstance(argument, types.CustomType):
        one, other = (typing.get_origin(custom.cls) or custom.cls for custom in (result, argument))
        return issubclass(one, other)
    return True


_RULES: tuple[tuple[Any, Callable[[Any, Any, Pairs], bool]], ...] = (
    ((types.IntType, types.FloatType), _number_fits),
    (types.LiteralType, _literal_fits),
    (types.EnumType, _enum_fits),
    ((*_ARRAYS, types.TupleType), _array_fits),
    (types.DictType, _dict_fits),
    (_OBJECTS, _object_fits),
)
