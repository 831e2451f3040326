# SPDX-License-Identifier: Apache-2.0
"""Makes the headers and library of the installed TensorFlow a repository."""

_QUERY = """
import tensorflow as tf
print(tf.__version__, tf.sysconfig.get_include(), tf.sysconfig.get_lib())
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files(["build_info.json"])

cc_import(
    name = "library",
    shared_library = "lib/libtensorflow_framework.so.2",
)

cc_library(
    name = "framework",
    hdrs = glob(["include/**"]),
    includes = ["include"],
    deps = [":library"],
)
"""

def _tensorflow_headers_impl(repository_ctx):
    python = repository_ctx.os.environ.get("PYTHON_BIN_PATH", "python3")
    result = repository_ctx.execute(
        [python, "-c", _QUERY],
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if result.return_code:
        fail("`import tensorflow` failed under %s; name a Python that has " %
             python + "TensorFlow in PYTHON_BIN_PATH.\n" + result.stderr)
    version, include, lib = result.stdout.strip().split("\n")[-1].split(" ")
    repository_ctx.symlink(include, "include")
    repository_ctx.symlink(
        lib + "/libtensorflow_framework.so.2",
        "lib/libtensorflow_framework.so.2",
    )
    repository_ctx.file(
        "build_info.json",
        '{"tensorflow": "%s", "cuda": false}\n' % version,
    )
    repository_ctx.file("BUILD", _BUILD)

tensorflow_headers = repository_rule(
    implementation = _tensorflow_headers_impl,
    environ = ["PYTHON_BIN_PATH"],
    local = True,
)
