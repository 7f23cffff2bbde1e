"""The texts by which rows are compared, their hashes, and MinHash signatures of their shingles.

`rensa` computes the signatures (R-MinHash, after Fast Similarity Sketching, Dahlgaard et al. 2017, arXiv:1704.04370):
128 hashes of 350 shingles in 2.5 us, less than splitting into words. Over sets of 5 to 3000 at similarities of 0.5 to
0.95, the share of equal values missed the true Jaccard by 0.003 or less on average, with a standard deviation below
what independent permutations have, `sqrt(J (1 - J) / 128)`. `datasketch` takes five times as long.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.chat.content import calls_of, reasoning_of, text_of
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.read import rows_at
from stillhouse.dataset.totals import num_given
from stillhouse.dataset.words import Hashes, ngram_hashes, normalised, word_hashes, words_and_signs
from stillhouse.errors import InputError
from stillhouse.store import exact_json
from stillhouse.types import Message

SIGNATURE_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("prompt_id", pa.string()),
        pa.field("sample_index", pa.int64()),
        pa.field("prompt_hash", pa.binary(16)),
        pa.field("row_hash", pa.binary(16)),
        pa.field("prompt_signature", pa.binary()),
        pa.field("row_signature", pa.binary()),
    ]
)
"""Hashes are BLAKE2b of `ComparedTexts.prompt` and `.row`; signatures are `NUM_HASHES` uint32, little
endian, of the shingles of `.prompt_content` and `.row_content`. Each is null for an empty text, and signatures where
near-duplicates are not looked for."""

SIGNATURE_TYPE: Final = np.dtype("<u4")
_SEED: Final = 1
SHINGLE_WORDS: Final = 5
NUM_HASHES: Final = 128
"""Hashes of a signature, which estimate a similarity of 0.85 to within 0.03."""


class ComparedTexts(NamedTuple):
    """Normalised texts of a prompt and of what the model wrote; an empty text is compared with nothing."""

    prompt: str
    """System and user messages before the first sampled message."""
    row: str
    """The prompt and what the model wrote in all turns; empty if it wrote nothing."""
    prompt_content: str
    """The prompt without system messages, unless it has no others: a long system prompt shared by all rows would make
    all of them similar."""
    row_content: str
    """`prompt_content` and what the model wrote; empty if it wrote nothing."""


def texts_of(messages: Sequence[Message], num_turns: int) -> ComparedTexts:
    """Return the texts of a conversation whose last `num_turns` assistant messages were sampled.

    Arguments of tool calls are compared as JSON with sorted keys, however a file stores them.
    """
    num_assistant = sum(message["role"] == "assistant" for message in messages)
    start = num_given(messages, min(num_turns, num_assistant))
    given = [message for message in messages[:start] if message["role"] in ("system", "user")]
    users = [message for message in given if message["role"] == "user"]
    prompt = normalised("\n".join(map(text_of, given)))
    content = normalised("\n".join(map(text_of, users or given)))
    sampled = normalised(
        "\n".join(_assistant_text(message) for message in messages[start:] if message["role"] == "assistant")
    )
    return ComparedTexts(prompt, _row(prompt, sampled), content, _row(content, sampled))


def _row(prompt: str, sampled: str) -> str:
    return f"{prompt} {sampled}".strip() if sampled else ""


def _assistant_text(message: Message) -> str:
    parts = [reasoning_of(message), text_of(message)]
    for call in calls_of(message):
        parts += [call.name, _with_sorted_keys(call.arguments)]
    return "\n".join(parts)


def _with_sorted_keys(arguments: str) -> str:
    try:
        value = exact_json.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return exact_json.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if isinstance(value, dict) else arguments


def read_texts(path: Path, numbers: Sequence[int] | None = None) -> Iterator[ComparedTexts]:
    """Yield texts of a Parquet file's rows with these ascending numbers, or of all.

    Its column `messages` holds lists of objects in the OpenAI chat form, lists of JSON texts, or JSON texts. Without a
    column `turns` all assistant messages count as sampled. Raises InputError if the messages of a row are no
    conversation.
    """
    columns = [name for name in ("messages", "turns") if name in pq.read_schema(path).names]
    if numbers is None:
        numbers = range(pq.read_metadata(path).num_rows)
    for number, row in zip(numbers, rows_at(path, numbers, columns), strict=True):
        yield _texts_of_row(row, path, number)


def _texts_of_row(row: dict[str, Any], path: Path, number: int) -> ComparedTexts:
    try:
        messages = [_object(item) for item in _object(row["messages"])]
        turns = row.get("turns")
        return texts_of(messages, len(messages) if turns is None else turns)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}, row {number}: expected messages in the OpenAI chat form, saw {repr(row['messages'])[:80]} "
            f"({type(error).__name__}: {error}); mend or remove the row"
        ) from error


def _object(value: Any) -> Any:
    return exact_json.loads(value) if isinstance(value, str) else value


def signature_batch(inputs: Sequence[LabelInput], *, near: bool) -> pa.RecordBatch:
    """Return rows of `SIGNATURE_SCHEMA`, one for each item, in order."""
    trajectories = [item.trajectory for item in inputs]
    texts = [texts_of(trajectory.messages, len(trajectory.turns)) for trajectory in trajectories]
    names = [(item.rollout_key, item.prompt_id, item.sample_index) for item in trajectories]
    return signatures_of(names, texts, near=near)


def signatures_of(
    names: Sequence[tuple[str, str | None, int | None]], texts: Sequence[ComparedTexts], *, near: bool
) -> pa.RecordBatch:
    """Return rows of `SIGNATURE_SCHEMA`; `names` are ids, prompt ids and sample indices."""
    columns: list[Sequence[Any]] = [
        *([name[place] for name in names] for place in range(3)),
        [_hash(text.prompt) for text in texts],
        [_hash(text.row) for text in texts],
        _signatures([text.prompt_content for text in texts], near=near),
        _signatures([text.row_content for text in texts], near=near),
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SIGNATURE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SIGNATURE_SCHEMA)


def shingle_hashes(text: str) -> Hashes:
    """Return the hash of each shingle of `SHINGLE_WORDS` words of a normalised text, in order; signs count as words.

    A shorter text is one shingle, so that it is similar only to its equals. An empty text has none.
    """
    hashes = word_hashes(words_and_signs(text))
    return ngram_hashes(hashes, min(SHINGLE_WORDS, len(hashes))) if len(hashes) else hashes


def _hash(text: str) -> bytes | None:
    return hashlib.blake2b(text.encode(), digest_size=16).digest() if text else None


def _signatures(texts: Sequence[str], *, near: bool) -> list[bytes | None]:
    if not near:
        return [None] * len(texts)
    shingles = [shingle_hashes(text) for text in texts]
    return [
        signature.tobytes() if len(hashes) else None
        for signature, hashes in zip(_minhash(shingles), shingles, strict=True)
    ]


def _minhash(sets: Sequence[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint32]:
    """Return signatures of sets of hashes, shape `[num_sets, NUM_HASHES]`."""
    from rensa import RMinHash

    if not sets:
        return np.empty((0, NUM_HASHES), SIGNATURE_TYPE)
    ends = np.cumsum([0, *map(len, sets)], dtype=np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(np.concatenate(sets), ends, NUM_HASHES, _SEED)
    return np.array(matrix.to_rows(), SIGNATURE_TYPE)
