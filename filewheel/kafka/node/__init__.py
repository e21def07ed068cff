"""One node of the service: the threads that bring records from the topic to the wheels, and on to their targets.

`transport` is the seam to Kafka: nothing here knows a client. A module imports only from those to its left:

    settings transport meters | tally clock_guard | rules fire | loop | owned | owner | intake | standby upkeep watch
    | health | metrics listen note | topic_look | service
"""
