"""The stage on which parts are put: machines that are simulated, collectives one at a time."""
