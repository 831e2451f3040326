// SPDX-License-Identifier: Apache-2.0
// From the attributes and shapes of a pooling to the kernels' geometry.
#ifndef COMET_TENSORFLOW_POOLING_GEOMETRY_H_
#define COMET_TENSORFLOW_POOLING_GEOMETRY_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "custom_ops/cpu/pooling.h"

namespace comet {

struct PoolAttributes {
  int rank = 0;
  std::vector<int64_t> window;
  std::vector<int64_t> strides;
  bool same = false;

  static absl::Status Make(const std::vector<int64_t>& window,
                           const std::vector<int64_t>& strides,
                           const std::string& padding, PoolAttributes* pool) {
    const auto positive = [](int64_t v) { return v > 0; };
    int64_t size = 1;
    for (int64_t v : window) {
      if (v > 0 && size <= kMaxWindowSize) {
        size *= std::min(v, kMaxWindowSize + 1);
      }
    }
    if (window.empty() || window.size() > 3 ||
        window.size() != strides.size() || size > kMaxWindowSize ||
        !std::all_of(window.begin(), window.end(), positive) ||
        !std::all_of(strides.begin(), strides.end(), positive)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`window` and `strides` must be one to three positive integers each, "
          "as many of one as of the other, and the window at most ",
          kMaxWindowSize, " elements. Received: window=[",
          absl::StrJoin(window, ", "), "], strides=[",
          absl::StrJoin(strides, ", "), "]"));
    }
    pool->rank = static_cast<int>(window.size());
    pool->window = window;
    pool->strides = strides;
    pool->same = padding == "SAME";
    return absl::OkStatus();
  }

  // The geometry for an input [batch, spatial..., channels].
  absl::Status Geometry(const std::vector<int64_t>& shape,
                        PoolGeometry* geometry) const {
    if (static_cast<int>(shape.size()) != rank + 2 ||
        std::any_of(shape.begin(), shape.end(),
                    [](int64_t v) { return v < 0; })) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The pooling's input must have shape [batch, spatial..., channels] "
          "with ",
          rank, " spatial dimensions. Received: shape=[",
          absl::StrJoin(shape, ", "), "]"));
    }
    geometry->batch = shape.front();
    geometry->channels = shape.back();
    for (int i = 0; i < rank; ++i) {
      const int d = 3 - rank + i;
      const int64_t in = shape[1 + i];
      const int64_t w = window[i], s = strides[i];
      geometry->input[d] = in;
      geometry->window[d] = w;
      geometry->strides[d] = s;
      if (same) {
        const int64_t out = (in + s - 1) / s;
        geometry->output[d] = out;
        geometry->padding[d] = std::max<int64_t>((out - 1) * s + w - in, 0) / 2;
      } else {
        geometry->output[d] = in < w ? 0 : (in - w) / s + 1;
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace comet

#endif  // COMET_TENSORFLOW_POOLING_GEOMETRY_H_
