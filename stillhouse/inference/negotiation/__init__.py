"""What an endpoint's model takes of a request, learnt from its refusals; the seller's own words decide.

Dropped or replaced is only what leaves the meaning of the data what it is; the rest fails with the setting to change.
"""

from stillhouse.inference.failures import Failure, RequestFailed
from stillhouse.inference.negotiation.book import TermsBook
from stillhouse.inference.negotiation.message_keys import with_key
from stillhouse.inference.negotiation.parameters import explained, with_parameter, with_role
from stillhouse.inference.negotiation.schemas import with_schemas
from stillhouse.inference.negotiation.terms import Asked, Terms

__all__ = ["Asked", "Terms", "TermsBook", "learnt"]


def learnt(terms: Terms, failure: Failure, asked: Asked) -> tuple[Terms, str]:
    """Return the terms after a refusal, and what has changed in words.

    Raise RequestFailed, with what to do, where nothing may be changed or the failure is no refusal of the form.
    """
    lessons = (with_key, with_role, with_parameter) if failure.is_refusal else ()
    for lesson in (*lessons, with_schemas):
        if (changed := lesson(terms, failure, asked)) is not None:
            return changed
    raise RequestFailed(explained(failure, asked))
