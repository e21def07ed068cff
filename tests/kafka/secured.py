"""A broker that asks who you are (SASL), and lets users do only what rules allow (ACLs).

Invariant: it can be imported where confluent-kafka is not installed; the tests that call it are skipped there.
"""

from __future__ import annotations

from typing import Any

from tests.kafka.reading import ANSWER_TIMEOUT_S, read

ROLES = ("maker", "node", "sender", "operator", "worker")
USERS = {"root": "root-secret", "ann": "hush", **{role: f"{role}-secret" for role in ROLES}}
SETTINGS = [
    "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN",
    "sasl.mechanism.inter.broker.protocol=PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="root" password="{USERS["root"]}" '
    + " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    + ";",
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:root;User:ANONYMOUS",  # the listener between controllers asks nobody
]


def as_user(name: str, password: str = "") -> dict[str, str]:
    """Return the settings of a client."""
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": name,
        "sasl.password": password or USERS[name],
    }  # fmt: skip


class Secured:
    """A broker with users, and its administrator."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import admin

        self.bootstrap = bootstrap
        self.config = {"bootstrap.servers": bootstrap, **as_user("root")}
        self.words: Any = admin
        self.admin = admin.AdminClient(self.config)

    def allow(self, user: str, kind: str, name: str, *operations: str, prefixed: bool = False) -> None:
        words = self.words
        pattern = "PREFIXED" if prefixed else "LITERAL"
        rules = [
            words.AclBinding(
                words.ResourceType[kind], name, words.ResourcePatternType[pattern], f"User:{user}", "*",
                words.AclOperation[operation], words.AclPermissionType.ALLOW,
            )
            for operation in operations
        ]  # fmt: skip
        for done in self.admin.create_acls(rules).values():
            done.result(ANSWER_TIMEOUT_S)

    def forbid_all(self, *users: str) -> None:
        """Take back what was allowed to these users; default: to all roles."""
        words = self.words
        every = [
            words.AclBindingFilter(
                words.ResourceType.ANY, None, words.ResourcePatternType.ANY, f"User:{user}", None,
                words.AclOperation.ANY, words.AclPermissionType.ANY,
            )
            for user in users or ROLES
        ]  # fmt: skip
        for done in self.admin.delete_acls(every).values():
            done.result(ANSWER_TIMEOUT_S)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        for done in self.admin.create_partitions([self.words.NewPartitions(topic, partitions)]).values():
            done.result(ANSWER_TIMEOUT_S)

    def put(self, topic: str, value: bytes) -> None:
        """Produce one record."""
        from confluent_kafka import Producer

        producer = Producer(self.config)
        producer.produce(topic, value)
        assert producer.flush(ANSWER_TIMEOUT_S) == 0

    def place(self, topic: str, user: str, password: str = "") -> list[str]:
        """Return the options of a verb."""
        words = [f"{name}={value}" for name, value in as_user(user, password).items()]
        return ["-b", self.bootstrap, "-t", topic, *(part for word in words for part in ("-X", word))]

    def values(self, topic: str) -> list[bytes]:
        return sorted(message.value() for message in read(self.bootstrap, topic, **as_user("root")))
