"""Property tests draw the same examples in every run: a failure is a fault, never bad luck."""

from hypothesis import HealthCheck, settings

from tests.thorough import examples

settings.register_profile(
    "holdfast",
    derandomize=True,
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("holdfast")
