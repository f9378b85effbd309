# What old versions of Bazel ask of rules_java: each rule is the one that they have built in.


def java_binary(**attributes):
    native.java_binary(**attributes)


def java_import(**attributes):
    native.java_import(**attributes)


def java_library(**attributes):
    native.java_library(**attributes)


def java_package_configuration(**attributes):
    native.java_package_configuration(**attributes)


def java_plugin(**attributes):
    native.java_plugin(**attributes)


def java_runtime(**attributes):
    native.java_runtime(**attributes)


def java_test(**attributes):
    native.java_test(**attributes)


def java_toolchain(**attributes):
    native.java_toolchain(**attributes)
