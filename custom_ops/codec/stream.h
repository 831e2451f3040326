// SPDX-License-Identifier: Apache-2.0
// The stream's header and tables: writing and validating them on the host.
#ifndef COMET_CODEC_STREAM_H_
#define COMET_CODEC_STREAM_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "custom_ops/codec/checksum.h"
#include "custom_ops/codec/format.h"
#include "custom_ops/codec/quantise.h"
#include "custom_ops/codec/status.h"

namespace comet {

// The header's content; see README.md for the offsets.
struct StreamHeader {
  DType dtype = DType::kFloat32;
  Rounding rounding = Rounding::kNearest;
  int64_t n = 0;
  int64_t row_length = 1;
  float error_bound = 0.0f;
  float step = 0.0f;
  uint64_t seed = 0;
  int64_t nonzeros = 0;
  int64_t bytes = 0;
  uint64_t checksum = 0;
};

// Larger sizes could overflow 64-bit arithmetic on them.
constexpr int64_t kMaxElements = int64_t{1} << 56;

template <class T>
void StoreAt(uint8_t* bytes, int64_t offset, T value) {
  std::memcpy(bytes + offset, &value, sizeof value);
}

template <class T>
T LoadAt(const uint8_t* bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

// Writes the 64 header bytes; header.checksum is the sum over the tiles.
inline void WriteHeader(const StreamHeader& header, uint8_t* out) {
  std::memcpy(out, "CMET", 4);
  out[4] = kFormatVersion;
  out[5] = static_cast<uint8_t>(header.dtype);
  out[6] = static_cast<uint8_t>(header.rounding);
  out[7] = 0;
  StoreAt(out, 8, header.n);
  StoreAt(out, 16, header.row_length);
  StoreAt(out, 24, header.error_bound);
  StoreAt(out, 28, header.step);
  StoreAt(out, 32, header.seed);
  StoreAt(out, 40, header.nonzeros);
  StoreAt(out, 48, header.bytes);
  StoreAt(out, 56, header.checksum + HeaderChecksum(out));
}

// Checks everything in the header that can be checked without the tiles.
// header->checksum becomes the sum that the tiles must have.
inline Status ReadHeader(const uint8_t* stream, int64_t bytes,
                         StreamHeader* header) {
  if (bytes < kHeaderBytes + kPaddingBytes) {
    return Status::Error("compressed stream has " + std::to_string(bytes) +
                         " bytes, fewer than an empty tensor's; it is cut off");
  }
  if (std::memcmp(stream, "CMET", 4) != 0) {
    return Status::Error("not a compressed stream: it must start with CMET");
  }
  if (stream[4] != kFormatVersion) {
    return Status::Error("compressed stream has format version " +
                         std::to_string(stream[4]) + ", this library reads " +
                         std::to_string(kFormatVersion) +
                         "; use the version of the library that wrote it");
  }
  const auto damaged = [](const char* what) {
    return Status::Error(
        std::string("compressed stream is damaged: wrong header field ") +
        what);
  };
  if (stream[5] > 2) return damaged("dtype");
  if (stream[6] > 1) return damaged("rounding");
  if (stream[7] != 0) return damaged("reserved");
  header->dtype = static_cast<DType>(stream[5]);
  header->rounding = static_cast<Rounding>(stream[6]);
  header->n = LoadAt<int64_t>(stream, 8);
  header->row_length = LoadAt<int64_t>(stream, 16);
  header->error_bound = LoadAt<float>(stream, 24);
  header->step = LoadAt<float>(stream, 28);
  header->seed = LoadAt<uint64_t>(stream, 32);
  header->nonzeros = LoadAt<int64_t>(stream, 40);
  header->bytes = LoadAt<int64_t>(stream, 48);
  if (header->n < 0 || header->n > kMaxElements) return damaged("n");
  if (header->row_length < 1 || header->row_length > kMaxElements) {
    return damaged("row_length");
  }
  const uint32_t bound = FloatBits(header->error_bound);
  if (bound < FloatBits(kSmallestNormal) || bound >= 0x7F800000u) {
    return damaged("error_bound");
  }
  const float step =
      StepFor(header->dtype, header->rounding, header->error_bound);
  if (FloatBits(header->step) != FloatBits(step)) return damaged("step");
  if (header->nonzeros < 0 || header->nonzeros > header->n) {
    return damaged("nonzeros");
  }
  if (header->bytes != bytes) {
    return Status::Error("compressed stream should have " +
                         std::to_string(header->bytes) + " bytes but has " +
                         std::to_string(bytes));
  }
  header->checksum = LoadAt<uint64_t>(stream, 56) - HeaderChecksum(stream);
  return Status();
}

// Checks that the tables describe tiles that fill the stream without gaps.
inline Status CheckTables(const uint8_t* stream, const StreamHeader& header) {
  const Geometry g = MakeGeometry(header.n, header.row_length);
  const int64_t end = header.bytes - kPaddingBytes;
  // First that the tables fit, before any of them is read.
  if (g.tiles > end / 2 || TilesStart(g.tiles) > end) {
    return Status::Error("compressed stream is damaged: its tables do not fit");
  }
  const int64_t offsets = kHeaderBytes;
  const int64_t sizes = offsets + 8 * OffsetCount(g.tiles);
  int64_t position = TilesStart(g.tiles);
  bool valid = true;
  for (int64_t tile = 0; tile < g.tiles; ++tile) {
    if (tile % kTilesPerOffset == 0) {
      const int64_t group = tile / kTilesPerOffset;
      valid &= LoadAt<int64_t>(stream, offsets + 8 * group) == position;
    }
    position += LoadAt<uint16_t>(stream, sizes + 2 * tile);
  }
  uint8_t padding = 0;
  for (int k = 0; k < kPaddingBytes; ++k) padding |= stream[end + k];
  if (!valid || position != end || padding != 0) {
    return Status::Error("compressed stream is damaged: wrong tile tables");
  }
  return Status();
}

}  // namespace comet

#endif  // COMET_CODEC_STREAM_H_
