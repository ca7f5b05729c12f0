#include "train/metrics.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/file.h"
#include "base/text.h"
#include "base/version.h"

namespace qkgpt {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t most_waiting = 16 << 20;  // a hundred thousand rows; beyond that there is a hole

// Numbers that are not finite become null, and the row says which kind there was.
std::string line(Json row) {
  const char* nonfinite = nullptr;
  const auto mend = [&nonfinite](Json& value) {
    if (!value.is_number_float() || std::isfinite(value.get<double>())) return;
    nonfinite = std::isnan(value.get<double>()) ? "nan" : nonfinite ? nonfinite : "inf";
    value = nullptr;
  };
  for (auto& entry : row.items()) {
    mend(entry.value());
    if (entry.value().is_array())
      for (Json& value : entry.value()) mend(value);
  }
  if (nonfinite) row["nonfinite"] = nonfinite;
  return row.dump() + "\n";
}

std::string hex8(std::uint32_t x) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", x);
  return text;
}

// Whether a row belongs to what happened up to the state.
bool belongs(const std::string& text, const RunState& state) {
  const Json row = Json::parse(text, nullptr, false);
  if (!row.is_object() || !row.contains("kind") || !row["kind"].is_string()) return false;
  if (row["kind"] == "start") return true;
  if (!row.contains("step") || !row["step"].is_number_integer()) return false;
  const auto step = row["step"].get<Index>();
  if (step < 0) return false;
  return step < state.step || (step == state.step && (row["kind"] == "train" || state.last_eval_step == step));
}

// Length of the leading part of the file that belongs to the state, in whole lines.
Index kept_length(const std::string& content, const RunState& state) {
  std::size_t begin = 0;
  for (std::size_t end; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1)
    if (!belongs(content.substr(begin, end - begin), state)) break;
  return static_cast<Index>(begin);
}

}  // namespace

Metrics::Metrics(const std::string& path, const RunState* resumed_from) : file_(path) {
  if (!resumed_from) return;
  const std::string content = read_file(path);
  const Index length = kept_length(content, *resumed_from);
  if (length < static_cast<Index>(content.size())) file_.cut(length);
}

void Metrics::write(const std::string& text) {
  if (waiting_.size() > most_waiting) waiting_.clear();
  waiting_ += text;
  if (file_.append(waiting_)) return waiting_.clear();
  failed_ = true;
}

void Metrics::sync() {
  if (!waiting_.empty()) write("");
  failed_ |= !file_.sync();
}

void Metrics::start(const Config& config, const std::string& sha, std::uint32_t init_crc, std::uint32_t windows_crc) {
  write(line({{"kind", "start"},
              {"version", version()},
              {"attention", row(config.attention).name},
              {"text_sha256", sha},
              {"init_crc", hex8(init_crc)},
              {"windows_crc", hex8(windows_crc)}}));
}

void Metrics::train(Index step, double loss, double lr, double grad_norm, Index tokens, double ms, double rate) {
  write(line({{"kind", "train"},
              {"step", step},
              {"loss", loss},
              {"lr", lr},
              {"grad_norm", grad_norm},
              {"tokens", tokens},
              {"ms", ms},
              {"tok_per_s", rate}}));
}

void Metrics::eval(Index step, double train_loss, const double* val_loss, bool best, double ms) {
  Json row = {{"kind", "eval"}, {"step", step}, {"train_loss", train_loss}};
  row["val_loss"] = val_loss ? Json(*val_loss) : Json(nullptr);
  row["best"] = best;
  row["ms"] = ms;
  write(line(std::move(row)));
}

void Metrics::attention(Index step, Index layer, const AttentionStats& s) {
  write(line({{"kind", "attention"},
              {"step", step},
              {"layer", layer},
              {"logit_max", s.logit_max},
              {"entropy", s.entropy},
              {"p_max", s.p_max},
              {"q_norm", s.q_norm},
              {"k_norm", s.k_norm},
              {"scale", s.scale}}));
}

void Metrics::final(Index step, double val_loss, double val_loss_full) {
  write(line({{"kind", "final"},
              {"step", step},
              {"val_loss", val_loss},
              {"val_loss_full", val_loss_full},
              {"bits_per_char", val_loss_full / std::numbers::ln2}}));
}

}  // namespace qkgpt
