"""The command line: one file for each command.

Arguments and files enter; results leave on stdout, everything else on stderr, and an exit status
(semantics 5). What takes long to import is imported by the command that uses it, when it runs.
"""
