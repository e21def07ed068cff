"""Tests of the delay service on Kafka."""
