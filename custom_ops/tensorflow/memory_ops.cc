// SPDX-License-Identifier: Apache-2.0
// Registration of the ops that read the allocator's statistics.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("Comet>MemoryStats")
    .Input("after: T")
    .Output("statistics: int64")
    .Attr("T: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads how much memory the allocator of the op's device has handed out.

Fails where the allocator keeps no statistics, rather than returning zeros.

after: Tensors that must exist before the statistics are read. They are counted.
statistics: [bytes in use now, most bytes ever in use since the last reset].
)doc");

REGISTER_OP("Comet>ResetPeakMemory")
    .Input("after: T")
    .Attr("T: list(type) >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Sets the peak of the device's allocator to what is in use now.

after: Tensors that must exist before the peak is reset.
)doc");
