"""Tests of backup wheels."""
