"""date, timestamp, timestamptz; time, timetz and interval are PostgreSQL's text."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from .family import Carrier, Converted, Family, Scalar, Unfit, guarded, raised_limit
from .lake import Kind
from .lazily import np, npt, pa, pc
from .parsing import describe
from .slices import array, views, whole_numbers

if TYPE_CHECKING:
    from .lake import LakeType
    from .slices import Mask, Slices

TIMESTAMPTZ = 1184
POSTGRES_EPOCH_US = 946_684_800_000_000
"""when the clock of PostgreSQL's values begins, in microseconds since 1970"""
_DAY_US = 86_400_000_000
_EPOCH_DAYS = POSTGRES_EPOCH_US // _DAY_US
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""of the years 1 and 9999, since 1970"""

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")
_ZONE = re.compile(r"([+-]\d\d)(?::?(\d\d))?(?::\d\d)?")
_UNFIT_DATE = "infinity or a date outside the years 1 to 9999"
_UNFIT_TIME = "infinity or a time outside the years 1 to 9999"


def _text(text: Slices, lake: LakeType, form: str) -> Converted:
    try:
        return Converted(_parsed(text, lake))
    except pa.ArrowInvalid:
        fits = pc.match_substring_regex(views(text, pa.string_view()).cast(pa.string()), form)
        bad = ~fits.fill_null(True).to_numpy(zero_copy_only=False)
        row = int(bad.argmax())
        return Converted(_parsed(text.without(bad), lake), Unfit(row, describe(text[row])))


def _parsed(text: Slices, lake: LakeType) -> pa.Array:
    return views(text, pa.string_view()).cast(pa.string()).cast(lake.arrow)


def _binary_dates(values: Slices, lake: LakeType) -> Converted:
    sent = whole_numbers(values, 4)
    endless = (sent == np.iinfo(np.int32).max) | (sent == np.iinfo(np.int32).min)
    days = sent + _EPOCH_DAYS
    bad = (days < _FIRST_DAY) | (days > _LAST_DAY)
    return _within(values, days.astype(np.int32), bad, endless, lake.arrow)


def _binary_timestamps(values: Slices, lake: LakeType) -> Converted:
    sent = whole_numbers(values, 8)
    endless = (sent == np.iinfo(np.int64).max) | (sent == np.iinfo(np.int64).min)
    # What is endless may turn over here; it is not used.
    micros = sent + POSTGRES_EPOCH_US
    bad = (micros < _FIRST_DAY * _DAY_US) | (micros >= (_LAST_DAY + 1) * _DAY_US) | endless
    return _within(values, micros, bad, endless, lake.arrow)


def _within(
    values: Slices, numbers: npt.NDArray[np.int32] | npt.NDArray[np.int64], bad: Mask, endless: Mask, type: pa.DataType
) -> Converted:
    if values.valid is not None:
        bad &= values.valid
    if not bad.any():
        return Converted(array(values, numbers, type))
    row = int(bad.argmax())
    what = "infinity" if endless[row] else "a date before year 1 or after 9999"
    return Converted(array(values.without(bad), numbers, type), Unfit(row, what))


def _unfit_date(quoted: str, _lake: LakeType) -> str:
    return f"{quoted} < DATE '0001-01-01' OR {quoted} > DATE '9999-12-31'"


def _unfit_timestamp(quoted: str, _lake: LakeType) -> str:
    return f"{quoted} < TIMESTAMP '0001-01-01' OR {quoted} >= TIMESTAMP '10000-01-01'"


def _unfit_timestamptz(quoted: str, _lake: LakeType) -> str:
    return f"{quoted} < TIMESTAMPTZ '0001-01-01 00:00+00' OR {quoted} >= TIMESTAMPTZ '10000-01-01 00:00+00'"


def _select_days(quoted: str, lake: LakeType, _overridden: bool) -> str:
    return guarded(quoted, _unfit_date(quoted, lake), f"({quoted} - DATE '1970-01-01')", "int4")


def _select_micros(quoted: str, lake: LakeType, _overridden: bool) -> str:
    # `extract` computes in numeric, which takes four times as long. The double that `date_part` gives is off by less
    # than half a microsecond as long as there are fewer than 2^51 of them since 1970: until the year 2041.
    name = lake.kind.upper()
    usual = f"{quoted} >= {name} '1900-01-01 00:00+00' AND {quoted} < {name} '2041-01-01 00:00+00'"
    unfit = (_unfit_timestamp if lake.kind is Kind.TIMESTAMP else _unfit_timestamptz)(quoted, lake)
    exact = guarded(quoted, unfit, f"(extract(epoch FROM {quoted}) * 1000000)::int8", "int8")
    return f"CASE WHEN {usual} THEN (date_part('epoch', {quoted}) * 1000000)::int8 ELSE {exact} END"


def _bound_date(text: str) -> str | None:
    return f"DATE'{text}'" if _DATE.fullmatch(text) else None


def _bound_timestamp(text: str) -> str | None:
    return f"TIMESTAMP_NTZ'{text}'" if _TIMESTAMP.fullmatch(text) else None


def _bound_timestamptz(text: str) -> str | None:
    match = _TIMESTAMP.match(text)
    zone = _ZONE.fullmatch(text, match.end()) if match else None
    if match is None or zone is None or zone[0].count(":") == 2:
        return None
    return f"TIMESTAMP'{match[0]}{zone[1]}:{zone[2] or '00'}'"


FAMILY = Family(
    "date and time",
    carriers=(
        Carrier(
            Kind.DATE, partial(_text, form=f"^{_DATE.pattern}$"), toasted=False,
            select=_select_days, arrived="date_from_unix_date({})", unfit=_unfit_date, unfit_words=_UNFIT_DATE,
            default=_DATE, bound=_bound_date,
        ),
        Carrier(
            Kind.TIMESTAMP,
            partial(_text, form=f"^{_TIMESTAMP.pattern}$"), toasted=False,
            select=_select_micros, arrived="cast(timestamp_micros({}) AS timestamp_ntz)",
            unfit=_unfit_timestamp, unfit_words=_UNFIT_TIME, default=_TIMESTAMP, bound=_bound_timestamp,
        ),
        Carrier(
            Kind.TIMESTAMPTZ,
            partial(_text, form=rf"^{_TIMESTAMP.pattern}[+-]\d\d(:\d\d)?$"), toasted=False,
            select=_select_micros, arrived="timestamp_micros({})", unfit=_unfit_timestamptz, unfit_words=_UNFIT_TIME,
            default=re.compile(rf"{_TIMESTAMP.pattern}\+00"), bound=_bound_timestamptz,
        ),
    ),
    # The typmod is the number of digits after the second.
    scalars=(
        Scalar(1082, "date", Kind.DATE, _binary_dates),
        Scalar(1114, "timestamp", Kind.TIMESTAMP, _binary_timestamps, typmod_widens=raised_limit),
        Scalar(TIMESTAMPTZ, "timestamptz", Kind.TIMESTAMPTZ, _binary_timestamps, typmod_widens=raised_limit),
        Scalar(1083, "time", typmod_widens=raised_limit),
        Scalar(1266, "timetz", typmod_widens=raised_limit),
        Scalar(1186, "interval"),
    ),
)  # fmt: skip
