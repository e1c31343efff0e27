"""Types without a lake type of their own: a string holds PostgreSQL's own text, that of the type's output function.

The rule needs no entry, and holds for every type that no family names: enums, composite types, types of extensions and
those of the system's catalogs. The entries are those that the documents name. What ALTER TYPE changes in the text of
enums and composites is read by `source/typefacts.py`.
"""

from __future__ import annotations

from .family import Family, Scalar

FIRST_USER_OID = 16384


def json_differs(kind: str, oid: int) -> bool:
    """As `Scalar.json_differs`, for a type without an entry; `kind` is its typtype."""
    # Composites become JSON objects, and a type of an extension may have a cast to json.
    return kind == "c" or (kind == "b" and oid >= FIRST_USER_OID)


FAMILY = Family(
    "PostgreSQL's own text",
    scalars=(
        Scalar(790, "money"),
        Scalar(869, "inet"), Scalar(650, "cidr"), Scalar(829, "macaddr"), Scalar(774, "macaddr8"),
        Scalar(1560, "bit", shown={"bit(n)": 8}), Scalar(1562, "varbit", shown={"bit varying(n)": 8}),
        Scalar(3904, "int4range"), Scalar(3926, "int8range"), Scalar(3906, "numrange"),
        Scalar(3908, "tsrange"), Scalar(3910, "tstzrange"), Scalar(3912, "daterange"),
        Scalar(4451, "int4multirange"), Scalar(4536, "int8multirange"), Scalar(4532, "nummultirange"),
        Scalar(4533, "tsmultirange"), Scalar(4534, "tstzmultirange"), Scalar(4535, "datemultirange"),
        Scalar(600, "point"), Scalar(628, "line"), Scalar(601, "lseg"), Scalar(603, "box"), Scalar(602, "path"),
        Scalar(604, "polygon"), Scalar(718, "circle"),
        Scalar(3614, "tsvector"), Scalar(3615, "tsquery"),
    ),
)  # fmt: skip
