// AdamW (Loshchilov, Hutter, arXiv 1711.05101) with clipping of the global gradient norm.
#pragma once
#include "autograd/param.h"
#include "config/config.h"

namespace qkgpt {

// Square root of the sum of all squared gradients, in double, in a fixed order. `partial` is work space, to be kept
// from one call to the next.
double gradient_norm(const Params& params, std::vector<double>& partial);

// One update, number `step` (0-based), with learning rate `lr` and gradients multiplied by `clip`:
//   m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2
//   w = w - lr decay w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + 1e-8)      t = step + 1
// decay applies to the parameters marked for it; lr is multiplied by each parameter's lr_mult.
void adamw(Params& params, const Config& config, Index step, double lr, double clip);

// Factor that brings a gradient of this norm down to grad_clip (0: off); 1 where it is small enough.
inline double clip_factor(double norm, double grad_clip) {
  return grad_clip > 0.0 && norm > grad_clip ? grad_clip / norm : 1.0;
}

}  // namespace qkgpt
