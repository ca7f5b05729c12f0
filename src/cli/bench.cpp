#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"
#include "ranks/ranks.h"
#include "train/benchmark.h"
#include "train/console.h"
#include "train/gradient_sum.h"
#include "train/report.h"
#include "train/start.h"
#include "train/threads.h"

namespace qkgpt {
namespace {
int run(const Arguments& a);
}

const Command& bench_command() {
  static const Command c = {
      .name = "bench",
      .brief = "measure this machine and the training step",
      .synopsis = "[CONFIG.json ...] [--KEY=VALUE ...]",
      .summary =
          "Measures this machine, the matrix products of a config and its training step. Without `data`, random "
          "characters stand for a text.",
      .most_positionals = any_number,
      .options = {{"steps", "N", "by the size", "updates to make; their last loss and weights end the output"},
                  {"json", "", "", "one JSON object"}},
      .config_keys = true,
      .many_ranks = true,
      .run = run,
  };
  return c;
}

namespace {

// As many characters as Tiny Shakespeare has: 65. What they say has no influence on the time.
std::string random_text(const Config& config) {
  const Stream stream(config.seed, "bench text");
  std::string text(static_cast<std::size_t>(100000 + 4 * config.block_size), ' ');
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<char>(' ' + (i < 65 ? static_cast<Index>(i) : stream.below(i, 65)));
  return text;
}

std::string padded(const std::string& s, std::size_t width) {
  return std::string(s.size() < width ? width - s.size() : 0, ' ') + s;
}

std::string percent(double fraction) { return fixed(100.0 * fraction, 1) + " %"; }

std::string product_lines(const Benchmark& b) {
  std::string out = "\nproduct, rows x out x in; GFLOP/s       forward             dx             dW";
  for (const ProductRates& p : b.products) {
    const std::string shape = cat(std::string_view("  "), p.name, " ", p.rows, " x ", p.out, " x ", p.in);
    out += cat("\n", shape, std::string(shape.size() < 33 ? 33 - shape.size() : 0, ' '));
    for (const double rate : {p.forward, p.dx, p.dw})
      out += padded(cat(fixed(rate, 1), " ", percent(rate / b.peak)), 15);
  }
  return out;
}

std::string op_lines(const Benchmark& b) {
  std::string out = "\nop, ms an update      forward   backward";
  for (const OpTime& t : b.ops)
    out += cat("\n  ", std::string_view(t.op), std::string(18 - std::string_view(t.op).size(), ' '),
               padded(fixed(t.forward, 3), 9), padded(fixed(t.backward, 3), 11));
  return out;
}

// Every rank sends and receives (n - 1) / n of the gradients twice: halving, then doubling.
std::string exchange_line(const Benchmark& b) {
  if (ranks::count() == 1) return "";
  const double n = ranks::count(), bytes = 2.0 * (n - 1.0) / n * static_cast<double>(b.gradient_bytes);
  return cat("\nexchange   ", bytes_text(bytes), " a rank and update, ", fixed(b.ms_exchange, 2),
             " ms on the way: ", fixed(std::max(0.0, b.ms_exchange - b.ms_waited), 2), " hidden behind backward, ",
             fixed(b.ms_waited, 2), " waited");
}

const OpTime& attention_of(const Benchmark& b) {
  for (const OpTime& t : b.ops)
    if (std::string_view(t.op) == "attention") return t;
  throw Error(ErrorKind::unexpected, "bench: no attention was measured");
}

std::string lines(const Benchmark& b, const Threads& threads) {
  const OpTime& attention = attention_of(b);
  std::string out =
      cat("machine    ", threads.why, ", ", std::string_view(simd_name), " (built for ", std::string_view(build_arch()),
          ")\npeak       ", fixed(b.peak, 1), " GFLOP/s of fused multiply-adds (median burst ", fixed(b.peak_median, 1),
          ")\n           memory ", fixed(b.bandwidth, 1), " GB/s");
  out += product_lines(b) + op_lines(b);
  out += cat("\nupdate     ", fixed(b.ms_median, 2), " ms, median of ", b.updates_measured, " (quartiles ",
             fixed(b.ms_low, 2), " and ", fixed(b.ms_high, 2), ", fastest ", fixed(b.ms_best, 2), ")");
  out += cat("\n           batch ", fixed(b.ms_batch, 2), ", forward ", fixed(b.ms_forward, 2), " (attention ",
             fixed(attention.forward, 2), "),\n           backward ", fixed(b.ms_backward, 2), " (attention ",
             fixed(attention.backward, 2), "), optimiser ", fixed(b.ms_optimiser, 2));
  out += exchange_line(b);
  out += cat("\nrate       ", grouped(std::lround(b.tokens_per_second)), " tokens/s, ", fixed(b.gflops, 1),
             " GFLOP/s as nanoGPT counts:\n           ", percent(b.fraction), " of the peak, ",
             percent(b.fraction_of_median_peak), " of its median burst");
  out += cat("\n           the matrix kernels do ", fixed(b.executed_gflop, 3),
             " GFLOP an update: ", percent(1e3 * b.executed_gflop / b.ms_median / b.peak), " of the peak");
  out += cat("\nmemory     state ", bytes_text(static_cast<double>(b.state_bytes)), ", activations and work space ",
             bytes_text(static_cast<double>(b.arena_bytes)), ",\n           process at most ",
             bytes_text(b.resident_bytes));
  return out;
}

nlohmann::ordered_json json(const Benchmark& b, const Config& config, int threads) {
  using Json = nlohmann::ordered_json;
  Json products = Json::array(), ops = Json::object();
  for (const ProductRates& p : b.products)
    products.push_back({{"name", p.name},
                        {"rows", p.rows},
                        {"out", p.out},
                        {"in", p.in},
                        {"forward_gflops", p.forward},
                        {"dx_gflops", p.dx},
                        {"dw_gflops", p.dw}});
  for (const OpTime& t : b.ops) ops[t.op] = {{"forward_ms", t.forward}, {"backward_ms", t.backward}};
  return {{"version", version()},
          {"simd", simd_name},
          {"arch", build_arch()},
          {"threads", threads},
          {"ranks", ranks::count()},
          {"config", Json::parse(to_json(config))},
          {"peak_gflops", b.peak},
          {"peak_median_gflops", b.peak_median},
          {"bandwidth_gb_per_s", b.bandwidth},
          {"products", products},
          {"ops", ops},
          {"updates", b.updates_measured},
          {"ms",
           {{"median", b.ms_median},
            {"low", b.ms_low},
            {"high", b.ms_high},
            {"best", b.ms_best},
            {"batch", b.ms_batch},
            {"forward", b.ms_forward},
            {"backward", b.ms_backward},
            {"optimiser", b.ms_optimiser},
            {"exchange", b.ms_exchange},
            {"waited", b.ms_waited},
            {"attention", attention_of(b).forward + attention_of(b).backward}}},
          {"tok_per_s", b.tokens_per_second},
          {"gflops", b.gflops},
          {"fraction", b.fraction},
          {"fraction_of_median_peak", b.fraction_of_median_peak},
          {"executed_gflop", b.executed_gflop},
          {"memory", {{"state", b.state_bytes}, {"arena", b.arena_bytes}, {"process", b.resident_bytes}}}};
}

void tell(const Arguments& a, const Benchmark& b, const Config& config, const Threads& threads, Index steps) {
  char digits[64];
  std::snprintf(digits, sizeof digits, "loss %.9g crc %08x", b.loss, b.crc);
  if (a.has("json")) {
    nlohmann::ordered_json out = json(b, config, threads.count);
    out["steps"] = steps;
    out["loss"] = b.loss;
    out["crc"] = std::string(digits).substr(std::string(digits).size() - 8);
    write_out(out.dump(2) + "\n");
  } else {
    write_out(lines(b, threads) + "\n");
    write_out(cat("bench: ", std::string_view(digits), "\n"));
  }
  if (!std::isfinite(b.loss)) throw Error(ErrorKind::diverged, "loss: not finite; a lower learning_rate helps");
}

int run(const Arguments& a) {
  Config config;
  Index steps = 0;
  std::string bytes;
  ranks::at_first([&] {
    config = load_config(a.positionals, a.overrides, {}, true);
    steps = a.integer("steps", 0, 1, 1000000);
    bytes = config.data.empty() ? random_text(config) : read_file(config.data);
  });
  share(config);
  ranks::share(steps);
  ranks::share(bytes);
  std::optional<Text> text;
  ranks::together([&] {
    require_shares(config.gradient_accumulation_steps, ranks::count());
    text = parse_text(bytes, config.data.empty() ? "random text" : config.data);
    require_length(train_split(*text, config.val_fraction), config.block_size);
    require_memory(config, text->tokenizer.size(), true);
  });
  Console console(false, ProgressMode::automatic);
  const Threads threads = choose_threads(config.threads);
  if (!threads.warning.empty()) console.warning(threads.warning);
  set_thread_count(threads.count);
  Gpt gpt(config, text->tokenizer.size());
  gpt.allocate(true);
  gpt.initialise();
  if (steps == 0) steps = benchmark_steps(config, gpt.count_without_positions());
  const Split train = train_split(*text, config.val_fraction);
  const Benchmark b = benchmark(gpt, train, steps, [&](const char* what, double done) {
    console.progress(cat("measuring ", std::string_view(what), " ", fixed(100.0 * done, 0), "%"));
  });
  console.clear();
  ranks::at_first([&] { tell(a, b, config, threads, steps); });
  return 0;
}

}  // namespace
}  // namespace qkgpt
