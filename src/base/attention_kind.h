// What distinguishes one attention from another, in the words that config and ops share.
// A kind is data: a row of the table in config/config.h made of these parts.
#pragma once

namespace qkgpt {

// How a row of q or k is normalised before the dot product.
enum class QkNorm {
  none,       // as it is
  l2,         // x / max(|x|, eps) per head                          (Henry et al., arXiv 2010.04245)
  rms,        // x / sqrt(mean x^2 + eps) per head                   (Qwen3, dots.llm1)
  rms_full,   // the same over all C channels, before the head split (OLMoE, OLMo 2)
  layernorm,  // centred and divided by the standard deviation, per head (ViT-22B)
};

// What multiplies the dot product.
enum class LogitScale {
  inverse_sqrt,  // 1 / sqrt(d), d = head size
  temperature,   // a / sqrt(d), a learned, starts at 1
  learned,       // g, learned, starts at qk_scale_init
  fixed,         // g = qk_scale_init
};

}  // namespace qkgpt
