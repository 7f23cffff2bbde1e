"""The split into training and validation: by cluster of near-duplicate prompts, every tag in both.

A cluster's draw is a hash of its name and `split_seed` alone; below `validation_fraction` its rows validate. So each
tag gives its share, within chance. A tag that chance leaves out, though it has `1 / validation_fraction` clusters or
more, gives the one of lowest draw. A cluster is of the tag of the prompt it is named after: its smallest prompt id.

What stays when rows are added:

- A cluster whose draw is below the fraction validates, whatever else there is.
- Every other cluster trains, unless it is the lowest of a tag that chance left out. So rows of other tags move nothing,
  and rows of its own tag move at most one cluster that was there: the lowest.
- A new prompt that is near to prompts of two clusters, or near to one and before it in the order of ids, makes a
  cluster of another name and so of another draw.
"""

import pandas as pd

from stillhouse.dataset.select.order import Mask


def validates(rows: pd.DataFrame, kept: Mask, fraction: float) -> Mask:
    """The rows of `kept` that validate; the others of them train."""
    clusters = rows.loc[kept, ["cluster", "draw"]].drop_duplicates("cluster").merge(_tags(rows), on="cluster")
    clusters["validates"] = clusters["draw"] < fraction
    for _, of_tag in clusters.groupby("tag"):
        if len(of_tag) * fraction >= 1 and not of_tag["validates"].any():
            clusters.loc[of_tag["draw"].idxmin(), "validates"] = True
    return kept & rows["cluster"].isin(clusters.loc[clusters["validates"], "cluster"]).to_numpy()


def _tags(rows: pd.DataFrame) -> pd.DataFrame:
    """Each `cluster` and the code of its `tag`, -1 for none."""
    prompts = rows[["cluster", "prompt"]].assign(tag=rows["tag"].cat.codes).drop_duplicates()
    prompts["is_other"] = prompts["prompt"] != prompts["cluster"]
    ordered = prompts.sort_values(["cluster", "is_other", "prompt", "tag"])
    return ordered.drop_duplicates("cluster")[["cluster", "tag"]]
