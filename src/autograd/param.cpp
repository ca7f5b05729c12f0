#include "autograd/param.h"

#include <algorithm>

namespace qkgpt {

Param& Params::add(std::string name, Shape shape, bool decay) {
  check(!find(name), "two parameters have the same name");
  Param& p = list_.emplace_back();
  p.name = std::move(name);
  p.shape = shape;
  p.decay = decay;
  return p;
}

void Params::allocate(bool training) {
  const auto padded = [](Index n) { return (n + 15) / 16 * 16; };  // every tensor starts on a cache line
  Index total = 0;
  for (const Param& p : list_) total += padded(p.size());
  memory_ = Memory(total * (training ? 4 : 1) * static_cast<Index>(sizeof(float)));
  if (training) gradients_ = {memory_.floats() + total, static_cast<std::size_t>(total)};
  Index offset = 0;
  chunks_.clear();
  for (Param& p : list_) {
    float* value = memory_.floats() + offset;
    p.var = {{value, p.shape}, training ? value + total : nullptr, false};
    p.exp_avg = training ? value + 2 * total : nullptr;
    p.exp_avg_sq = training ? value + 3 * total : nullptr;
    p.changed();
    offset += padded(p.size());
    for (Index begin = 0; begin < p.size(); begin += chunk)
      chunks_.push_back({&p, begin, std::min(chunk, p.size() - begin)});
  }
}

Param* Params::find(std::string_view name) {
  for (Param& p : list_)
    if (p.name == name) return &p;
  return nullptr;
}

Index Params::count() const { return count(true) + count(false); }

Index Params::count(bool decay) const {
  Index n = 0;
  for (const Param& p : list_)
    if (p.decay == decay) n += p.size();
  return n;
}

Index Params::tensors(bool decay) const {
  Index n = 0;
  for (const Param& p : list_) n += p.decay == decay;
  return n;
}

void Params::start_gradients() {
  for (Param& p : list_) p.var.grad_started = false;
}

}  // namespace qkgpt
