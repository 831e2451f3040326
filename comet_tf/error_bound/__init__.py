# SPDX-License-Identifier: Apache-2.0
"""Choosing how much error each stored activation may carry."""
