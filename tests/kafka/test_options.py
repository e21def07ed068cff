"""The options of a delay topic."""

from __future__ import annotations

import pytest

from filewheel import BadArgument
from filewheel.kafka.records.options import Policy


def test_the_topics_of_the_service_are_named_after_the_delay_topic() -> None:
    policy = Policy("later", horizon_s=1.5)
    assert (policy.dead_letter_topic, policy.marker_topic, policy.horizon_ms) == ("later.dlt", "later.cursor", 1500)
    assert Policy("later").horizon_ms is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": ""}, "topic is the name of a topic, not ''"),
        ({"topic": "a b"}, "topic is the name of a topic"),
        ({"topic": ".."}, "topic is the name of a topic"),
        ({"dead_letter_topic": "é"}, "dead_letter_topic is the name"),
        ({"default_target": "x" * 250}, "default_target is the name"),
        ({"default_target": "later"}, "default_target is 'later', which the service itself reads"),
        ({"default_target": "later.dlt"}, "where the service puts what it cannot deliver"),
        ({"dead_letter_topic": "later.cursor"}, "which the service itself reads"),
        ({"default_target": "__transaction_state"}, "which is the brokers' own"),
        ({"horizon_s": 0}, "horizon_s is a number above 0"),
        ({"put_back_s": -1}, "put_back_s is a number above 0"),
        ({"attempts_max": 0}, "attempts_max is a count from 1"),
        ({"on_target_error": "drop"}, 'on_target_error is "retry"'),
        ({"on_horizon": "refuse"}, 'on_horizon is "dead-letter" or "roll"'),
        ({"keyed": 1}, "keyed is True or False"),
        ({"keyed": True, "on_target_error": "put-back"}, "exclude each other"),
        ({"keyed": True, "on_horizon": "roll"}, "exclude each other"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        Policy(**{"topic": "later", **options})  # type: ignore[arg-type]
