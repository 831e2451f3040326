# SPDX-License-Identifier: Apache-2.0
"""Python face of the custom ops; nothing is loaded before it is used."""
