"""Schedules: rules that give a good one at once from a device's description."""
