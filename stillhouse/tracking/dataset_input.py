"""A dataset as MLflow's lineage names it, by our own fingerprint.

MLflow's loaders would read the data and digest a sample of it; a fingerprint over all bytes is at hand already.
"""

import json
import re
from typing import Any

_MAX_DIGEST_CHARS = 36


def dataset_input(name: str, uri: str, digest: str, context: str, num_rows: int | None) -> Any:
    """An `mlflow.entities.DatasetInput`; the source's type is the scheme of `uri`, or `local`."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", uri)
    dataset = Dataset(
        name=name,
        digest=digest[:_MAX_DIGEST_CHARS],
        source_type=scheme.group(1) if scheme else "local",
        source=json.dumps({"uri": uri}),
        profile=None if num_rows is None else json.dumps({"num_rows": num_rows}),
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", context)])
