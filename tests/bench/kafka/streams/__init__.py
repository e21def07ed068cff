"""The side `streams`: a delay service on Kafka Streams (DelayStreams.java), fetched by Maven and run from source."""
