import pytest

from stillhouse.report import format as formats


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formats.seconds(8.44), "8.4 s"),
        (formats.seconds(185.2), "3 min 05 s"),
        (formats.seconds(7620), "2 h 07 min"),
        (formats.dollars(0.0812), "$0.0812"),
        (formats.dollars(0.000822), "$0.000822"),
        (formats.dollars(1234.5), "$1,234.50"),
        (formats.dollars(0.0), "$0.00"),
        (formats.spend(1.5, None, None), "$1.50"),
        (formats.spend(1.5, 1.5, 0.0), "$1.50, all of it by price"),
        (formats.spend(1.5, 0.25, 2.0), "$1.50, $0.2500 of it by price, up to $2.00 more untold"),
        (formats.percent(0.12345), "12.3\u202f%"),
        (formats.interval(0.1, 0.25), "10.0\u201325.0\u202f%"),
        (formats.count(12345.0), "12,345"),
        (formats.metric(9120.0), "9,120"),
        (formats.metric(0.000123461), "0.0001235"),
    ],
)
def test_numbers_read_well(shown: str, expected: str) -> None:
    assert shown == expected


def test_an_unknown_number_is_a_dash_and_never_a_zero() -> None:
    unknown = [formats.seconds(None), formats.dollars(None), formats.percent(None), formats.interval(None, 0.5)]
    assert [*unknown, formats.count(None), formats.decimal(None)] == [formats.DASH] * 6
