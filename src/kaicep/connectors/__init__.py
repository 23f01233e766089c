"""Where events come from and where matches go: files, brokers, web addresses.

Records enter; events with their identity leave, in order of arrival, and beside them a dead letter for
every record that is none. Matches enter a sink, and stay there when they are committed. `contract` says
what every source and sink promises, `registry` makes them from tables of options.
"""
