"""What an endpoint's model takes of a request, learnt from its refusals; the seller's own words decide.

Dropped or replaced is only what leaves the meaning of the data what it is; the rest fails with the setting to change.
"""

from stillhouse.inference.negotiation.book import TermsBook
from stillhouse.inference.negotiation.learning import Asked, learnt
from stillhouse.inference.negotiation.terms import Terms

__all__ = ["Asked", "Terms", "TermsBook", "learnt"]
