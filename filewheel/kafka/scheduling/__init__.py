"""The scheduler on Kafka: calls of handlers travel through the delay topic, and any number of workers run them.

It puts the dispatcher and the runners of `filewheel.scheduling` on a consumer group in place of a wheel. A module
imports only from those to its left:

    call progress transport refused | outbox | keeper occurrences | engine | scheduler
"""
