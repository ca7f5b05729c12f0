#include "train/benchmark.h"

#ifdef __unix__
#include <sys/resource.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "base/crc32.h"
#include "kernels/gemm.h"
#include "kernels/peak.h"
#include "ranks/ranks.h"
#include "train/updates.h"

namespace qkgpt {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Between two values of the order the quantile lies on the line that joins them.
double quantile(std::vector<double> x, double q) {
  std::sort(x.begin(), x.end());
  const double at = q * static_cast<double>(x.size() - 1);
  const auto below = static_cast<std::size_t>(at), above = std::min(below + 1, x.size() - 1);
  return std::lerp(x[below], x[above], at - std::floor(at));
}

// Median seconds of a call: at least five, for at least a twentieth of a second; one before them warms up.
template <class Call>
double median_seconds(Call&& call) {
  call();
  std::vector<double> seconds;
  const auto begin = Clock::now();
  while (seconds.size() < 5 || seconds_since(begin) < 0.05) {
    const auto start = Clock::now();
    call();
    seconds.push_back(seconds_since(start));
  }
  return quantile(std::move(seconds), 0.5);
}

ProductRates product_rates(const std::string& name, Index rows, Index out, Index in) {
  const auto floats = [](Index n) { return Memory(n * static_cast<Index>(sizeof(float))); };
  const Memory x = floats(rows * in), y = floats(rows * out), w = floats(out * in),
               scratch = floats(weight_grad_scratch());
  const Memory w_t_panels = floats(panel_floats(in, out)), w_panels = floats(panel_floats(out, in));
  const auto fill = [](const Memory& m) {
    for (Index i = 0; i < m.bytes() / 4; ++i) m.floats()[i] = static_cast<float>(i % 7 - 3) * 0.25f;
  };
  fill(x), fill(y), fill(w);
  const Panels w_t = pack(w.floats(), 1, in, in, out, w_t_panels.floats());
  const Panels w_p = pack(w.floats(), in, 1, out, in, w_panels.floats());
  const double gflop = 2e-9 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
  ProductRates r{name, rows, out, in, 0.0, 0.0, 0.0};
  r.dw = gflop / median_seconds(
                     [&] { weight_grad(rows, out, in, y.floats(), x.floats(), false, w.floats(), scratch.floats()); });
  r.dx = gflop / median_seconds([&] { gemm(rows, {y.floats(), out, 1}, w_p, {}, x.floats(), in); });
  fill(x);
  r.forward = gflop / median_seconds([&] { gemm(rows, {x.floats(), in, 1}, w_t, {}, y.floats(), out); });
  return r;
}

double resident_bytes() {
#ifdef __unix__
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0.0;
#ifdef __APPLE__
  return static_cast<double>(usage.ru_maxrss);
#else
  return static_cast<double>(usage.ru_maxrss) * 1024.0;
#endif
#else
  return 0.0;
#endif
}

class Bursts {
 public:
  void take(int n) {
    while (n-- > 0) rates_.push_back(fma_burst());
  }
  double quantile(double q) const { return qkgpt::quantile(rates_, q); }

 private:
  std::vector<double> rates_;
};

void measure_updates(Gpt& gpt, const Split& train, Index steps, Bursts& bursts,
                     const std::function<void(double)>& progress, Benchmark& b) {
  Arena arena;
  Updates updates(gpt, train, arena);
  const Index warm_up = std::min<Index>(10, steps / 3);
  std::vector<double> all, batch, forward, backward, optimiser, exchange, waited;
  std::vector<OpTime> ops;                                   // of one update
  std::vector<std::vector<double>> op_forward, op_backward;  // a row per op
  for (Index step = 0; step < steps; ++step) {
    progress(static_cast<double>(step) / static_cast<double>(steps));
    if (step == warm_up) updates.measure_ops(&ops);
    std::optional<MultiplyAdds> count;
    if (step == 0) count.emplace();
    const UpdateResult r = updates.make(step);
    if (count) b.executed_gflop = 2e-9 * static_cast<double>(count->counted());
    b.loss = r.loss;
    if (step < warm_up) continue;
    bursts.take(1);
    op_forward.resize(ops.size()), op_backward.resize(ops.size());
    for (std::size_t i = 0; i < ops.size(); ++i) {
      op_forward[i].push_back(1e3 * std::exchange(ops[i].forward, 0.0));
      op_backward[i].push_back(1e3 * std::exchange(ops[i].backward, 0.0));
    }
    all.push_back(1e3 * r.seconds.sum());
    batch.push_back(1e3 * r.seconds.batch);
    forward.push_back(1e3 * r.seconds.forward);
    backward.push_back(1e3 * r.seconds.backward);
    optimiser.push_back(1e3 * r.seconds.optimiser);
    exchange.push_back(1e3 * r.exchange_seconds);
    waited.push_back(1e3 * r.seconds.waited);
  }
  b.updates_measured = static_cast<Index>(all.size());
  b.ms_median = quantile(all, 0.5), b.ms_low = quantile(all, 0.25), b.ms_high = quantile(all, 0.75);
  b.ms_best = quantile(all, 0.0);
  b.ms_batch = quantile(batch, 0.5), b.ms_forward = quantile(forward, 0.5);
  b.ms_backward = quantile(backward, 0.5), b.ms_optimiser = quantile(optimiser, 0.5);
  b.ms_exchange = quantile(exchange, 0.5), b.ms_waited = quantile(waited, 0.5);
  for (std::size_t i = 0; i < ops.size(); ++i)
    b.ops.push_back({ops[i].op, quantile(op_forward[i], 0.5), quantile(op_backward[i], 0.5)});
  b.arena_bytes = arena.capacity();
}

}  // namespace

Index benchmark_steps(const Config& config, Index params_without_positions) {
  const double tokens = static_cast<double>(config.batch_size * config.block_size * config.gradient_accumulation_steps);
  const double flops = tokens * flops_per_token(config, params_without_positions);
  return static_cast<Index>(std::clamp(std::round(4e11 / flops), 7.0, 100.0));
}

Benchmark benchmark(Gpt& gpt, const Split& train, Index steps,
                    const std::function<void(const char*, double)>& progress) {
  const Config& c = gpt.config();
  const Index rows = c.batch_size * c.block_size, C = c.n_embd;
  Benchmark b{};
  Bursts bursts;
  progress("peak", 0.0);
  bursts.take(50);
  measure_updates(
      gpt, train, steps, bursts, [&](double done) { progress("updates", done); }, b);
  b.resident_bytes = resident_bytes();
  const struct {
    const char* name;
    Index out, in;
  } layers[] = {{"attn.c_attn", 3 * C, C},
                {"attn.c_proj", C, C},
                {"mlp.c_fc", 4 * C, C},
                {"mlp.c_proj", C, 4 * C},
                {"head", gpt.vocab_size(), C}};
  for (const auto& layer : layers) {
    progress("matrix products", static_cast<double>(b.products.size()) / 5.0);
    b.products.push_back(product_rates(layer.name, rows, layer.out, layer.in));
    bursts.take(10);
  }
  b.bandwidth = triad_bandwidth(Index{192} << 20);
  bursts.take(50);
  b.peak = bursts.quantile(1.0), b.peak_median = bursts.quantile(0.5);

  const double tokens = static_cast<double>(rows * c.gradient_accumulation_steps);
  b.tokens_per_second = 1e3 * tokens / b.ms_median;
  b.gflops = 1e-9 * b.tokens_per_second * flops_per_token(c, gpt.count_without_positions());
  b.fraction = b.gflops / b.peak / ranks::count();
  b.fraction_of_median_peak = b.gflops / b.peak_median / ranks::count();
  b.gradient_bytes = static_cast<Index>(gpt.params().gradients().size_bytes());
  for (const Param& p : gpt.params().list()) {
    b.crc = crc32(std::as_bytes(std::span(p.value(), static_cast<std::size_t>(p.size()))), b.crc);
    b.state_bytes += static_cast<Index>(sizeof(float)) *
                     (4 * p.size() + static_cast<Index>(p.panels.size() + p.panels_transposed.size()));
  }
  return b;
}

}  // namespace qkgpt
