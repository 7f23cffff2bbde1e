"""Personal data and secrets, by `stillhouse.dataset.labelling.privacy`."""

from typing import TYPE_CHECKING, Final, Literal

from stillhouse.labels.declare import Column, Filter, Kind, Kinds, Label, Limit, Reason

if TYPE_CHECKING:
    import pandas as pd


def _holds(rows: "pd.DataFrame", dropped: tuple[str, ...]) -> "pd.Series[bool]":
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = pa.array(rows["private_data"])
    is_dropped = pc.is_in(pc.list_flatten(kinds), pa.array(dropped))
    return rows.index.to_series().isin(pc.list_parent_indices(kinds).filter(is_dropped).to_pandas())


PRIVACY: Final = Label(
    on_request="privacy",
    place=80,
    columns=(
        Column("private_data", Kind.TEXTS, "kinds of personal data and secrets the model wrote; null if not looked for",
               Kinds("Private data")),
    ),
    filters=(
        Filter(Reason("private", "the model wrote private data of a kind to drop"), "without private data",
            ("private_data",), _holds, Limit("drop_private",
            tuple[Literal["secret", "email", "phone", "card", "iban", "ip", "id"], ...],
            "Kinds of private data whose rows are dropped: leaked keys and tokens, e-mail addresses, telephone "
            "numbers, cards, bank accounts, IP addresses, identity numbers. `secret` always; the others where prompts "
            "or pages come from people, since a model may repeat what it learnt.", off=()), 130),
    ),
)  # fmt: skip
