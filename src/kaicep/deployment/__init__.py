"""Deployments: a `kaicep.toml` enters; its sources, queries and sinks run, and survive crashes.

In this process it is one loop, on Spark a driver that commits what tasks have written. Queries from outside
are apart.
"""
