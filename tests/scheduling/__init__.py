"""Tests of the embedded scheduler."""
