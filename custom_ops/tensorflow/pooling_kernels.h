// SPDX-License-Identifier: Apache-2.0
// The part of the pooling ops that all devices share: checking the inputs and
// allocating the outputs. A device adds Run().
#ifndef COMET_TENSORFLOW_POOLING_KERNELS_H_
#define COMET_TENSORFLOW_POOLING_KERNELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/tensorflow/pooling_geometry.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace comet {

class PoolOp : public tensorflow::OpKernel {
 public:
  explicit PoolOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::vector<int64_t> window, strides;
    std::string padding;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("window", &window));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("strides", &strides));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("padding", &padding));
    OP_REQUIRES_OK(ctx, PoolAttributes::Make(window, strides, padding, &pool_));
  }

 protected:
  PoolAttributes pool_;
};

class PackPoolPositionsOp : public PoolOp {
 public:
  using PoolOp::PoolOp;

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& x = ctx->input(0);
    const auto dims = x.shape().dim_sizes();
    PoolGeometry geometry;
    OP_REQUIRES_OK(
        ctx, pool_.Geometry(std::vector<int64_t>(dims.begin(), dims.end()),
                            &geometry));
    tensorflow::Tensor* positions = nullptr;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(
                       0, tensorflow::TensorShape({geometry.PositionBytes()}),
                       &positions));
    if (positions->NumElements() != 0) {
      OP_REQUIRES_OK(ctx, Run(ctx, geometry, x, positions));
    }
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const PoolGeometry& geometry,
                           const tensorflow::Tensor& x,
                           tensorflow::Tensor* positions) = 0;
};

// `input_shape` is in host memory on every device.
class PoolGradientOp : public PoolOp {
 public:
  using PoolOp::PoolOp;

  void Compute(tensorflow::OpKernelContext* ctx) final {
    const tensorflow::Tensor& positions = ctx->input(0);
    const tensorflow::Tensor& dy = ctx->input(1);
    const tensorflow::Tensor& input_shape = ctx->input(2);
    OP_REQUIRES(ctx, input_shape.dims() == 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "PoolGradient: `input_shape` must be a vector. Received: "
                    "input_shape.shape=",
                    input_shape.shape().DebugString())));
    const auto dims = input_shape.flat<int64_t>();
    const std::vector<int64_t> shape(dims.data(), dims.data() + dims.size());
    PoolGeometry geometry;
    OP_REQUIRES_OK(ctx, pool_.Geometry(shape, &geometry));
    tensorflow::TensorShape dx_shape, dy_shape;
    OP_REQUIRES_OK(ctx,
                   tensorflow::TensorShape::BuildTensorShape(shape, &dx_shape));
    dy_shape.AddDim(geometry.batch);
    for (int d = 3 - pool_.rank; d < 3; ++d) {
      dy_shape.AddDim(geometry.output[d]);
    }
    dy_shape.AddDim(geometry.channels);
    OP_REQUIRES(ctx,
                dy.shape() == dy_shape && positions.dims() == 1 &&
                    positions.NumElements() == geometry.PositionBytes(),
                absl::InvalidArgumentError(absl::StrCat(
                    "PoolGradient: a pooling of ", dx_shape.DebugString(),
                    " has outputs of shape ", dy_shape.DebugString(), " and ",
                    geometry.PositionBytes(),
                    " bytes of positions. Received: dy.shape=",
                    dy.shape().DebugString(),
                    ", positions.shape=", positions.shape().DebugString())));
    tensorflow::Tensor* dx = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, dx_shape, &dx));
    if (dx->NumElements() != 0) {
      OP_REQUIRES_OK(ctx, Run(ctx, geometry, positions, dy, dx));
    }
  }

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx,
                           const PoolGeometry& geometry,
                           const tensorflow::Tensor& positions,
                           const tensorflow::Tensor& dy,
                           tensorflow::Tensor* dx) = 0;
};

}  // namespace comet

#endif  // COMET_TENSORFLOW_POOLING_KERNELS_H_
