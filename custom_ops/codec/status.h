// SPDX-License-Identifier: Apache-2.0
// The result of a codec call: success, or a message for the caller.
#ifndef COMET_CODEC_STATUS_H_
#define COMET_CODEC_STATUS_H_

#include <string>
#include <utility>

namespace comet {

struct Status {
  bool ok = true;
  std::string message;

  static Status Error(std::string message) {
    return Status{false, std::move(message)};
  }
};

}  // namespace comet

#endif  // COMET_CODEC_STATUS_H_
