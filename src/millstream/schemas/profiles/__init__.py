"""Profiles: what kind of records a stream holds, and the shape they are brought into.

Installing one is planned in installation.py; each kind has a module of its own, evlog and metrics
with the schema and the search config that come with them.
"""

from millstream.schemas.profiles.installation import plan_profile, profile_document, profile_of
from millstream.schemas.profiles.metrics import metrics_rules
from millstream.schemas.profiles.profile import Normalised, Profile

__all__ = [
    "Normalised",
    "Profile",
    "metrics_rules",
    "plan_profile",
    "profile_document",
    "profile_of",
]
