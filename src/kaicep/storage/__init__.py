"""Where files are kept: a place as a user writes it enters, a path that kaicep can use leaves."""
