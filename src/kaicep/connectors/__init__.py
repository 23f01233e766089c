"""Where events come from: files now; brokers and sockets later.

A place (a file, a folder) enters; events with their identity leave, in order of arrival, and beside
them every record that could not be read, with the reason.
"""
