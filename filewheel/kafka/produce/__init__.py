"""Producers: they send records to the delay topic, from any program.

A module imports only from those to its left:

    delivery request | handle | producer async_producer
"""
