"""The seam to Kafka on confluent-kafka: the only modules that know the client library.

A module imports only from those to its left:

    quiet_log kept | trouble | admin group sender group_view
    | reader tail follower log_watcher shared_sink transaction_sink
    | clients | confluent level_client | call_transaction call_transport
"""
