"""Sinks: one file for each kind, all under the contract of `kaicep.connectors.contract`."""
