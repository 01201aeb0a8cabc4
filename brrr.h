#pragma once
// The public face of brrr: tensors, autograd, models and the graph-mode step.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "autograd/autograd.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/int_list.h"
#include "core/rng.h"
#include "core/scalar.h"
#include "core/tensor.h"
#include "graph/step.h"
#include "models/checkpoint.h"
#include "models/data.h"
#include "models/digits.h"
#include "models/generate.h"
#include "models/gpt.h"
#include "models/gpt2.h"
#include "models/idx.h"
#include "models/layers.h"
#include "models/mlp.h"
#include "models/module.h"
#include "models/optim.h"
#include "models/safetensors.h"
#include "models/schedule.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"
