"""Which room of the package may import which: the table of test_layering.py.

A room is a folder without the folders below it that are rooms themselves, or a module on the
package floor. `""` is the package itself, which has all public names.
"""

# A name stands for a room and all rooms below it; each room may import its own modules too.
MAY_IMPORT = {
    "ops.backend": set(),
    "ops.reference": {"ops.backend"},
    "ops": {"ops.backend", "ops.reference"},
    "core": {"ops"},
    "memories": {"core", "ops"},
    "transports.lifeline": {"core.version"},
    "transports": {"transports.lifeline"},
    "transports.horovod": {"transports", "transports.lifeline"},
    "transports.world": {"transports", "transports.horovod", "transports.lifeline"},
    "compressors": {"core", "memories", "ops"},
    "line": {"compressors", "core", "memories", "ops", "transports"},
    "aggregation.state": {"core", "line", "ops"},
    "aggregation.consistency": {"aggregation.state", "line", "transports"},
    "aggregation": {
        "aggregation.consistency",
        "aggregation.state",
        "core",
        "line",
        "transports",
    },
    "keras": {"aggregation", "core", "line", "transports"},
    "testing": {"aggregation", "core", "line", "transports"},
    "schedules": {"core"},
    "distribute": {"aggregation", "keras", "line", "transports"},
    "cli.run": set(),
    "cli": {"cli.run", "core", "keras", "line", "ops", "testing", "transports"},
    "cli.bench": {"aggregation", "cli", "core", "line", "ops"},
    "__main__": {"", "cli", "core", "line", "testing"},
    "": {
        "aggregation",
        "cli.run",
        "core",
        "distribute",
        "keras",
        "line",
        "schedules",
        "testing",
        "transports",
    },
}
