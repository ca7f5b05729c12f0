#include "format/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"

namespace qkgpt {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  Index bits;
};

constexpr DTypeRow dtypes[] = {
    {DType::BOOL, "BOOL", 8},
    {DType::F4, "F4", 4},
    {DType::F6_E2M3, "F6_E2M3", 6},
    {DType::F6_E3M2, "F6_E3M2", 6},
    {DType::U8, "U8", 8},
    {DType::I8, "I8", 8},
    {DType::F8_E5M2, "F8_E5M2", 8},
    {DType::F8_E4M3, "F8_E4M3", 8},
    {DType::F8_E8M0, "F8_E8M0", 8},
    {DType::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
    {DType::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
    {DType::I16, "I16", 16},
    {DType::U16, "U16", 16},
    {DType::F16, "F16", 16},
    {DType::BF16, "BF16", 16},
    {DType::I32, "I32", 32},
    {DType::U32, "U32", 32},
    {DType::F32, "F32", 32},
    {DType::C64, "C64", 64},
    {DType::F64, "F64", 64},
    {DType::I64, "I64", 64},
    {DType::U64, "U64", 64},
};

const DTypeRow& row_of(DType dtype) { return dtypes[static_cast<std::size_t>(dtype)]; }

// Receives the parser's events (nlohmann's SAX interface). The grammar is three levels deep and each state
// allows one kind of event, so that anything else, deep nesting included, ends the parse at once.
class HeaderReader {
 public:
  explicit HeaderReader(Header& header) : header_(header) {}
  const std::string& fault() const { return fault_; }

  bool key(std::string& name) {
    switch (state_) {
      case State::file: return top_level_key(name);
      case State::metadata:
        key_ = name;
        if (static_cast<Index>(header_.metadata.size()) == max_tensors) return fail("too many metadata keys");
        return !header_.metadata.contains(name) || fail(cat("metadata key ", excerpt(name), " occurs twice"));
      default: return field_key(name);
    }
  }

  bool start_object(std::size_t) {
    if (state_ == State::start) return state_ = State::file, true;
    if (state_ != State::file) return unexpected("an object");
    state_ = in_metadata_ ? State::metadata : State::tensor;
    return true;
  }

  bool end_object() {
    if (state_ == State::tensor && !(has_dtype_ && has_shape_ && has_offsets_))
      return fail(cat("dtype, shape or data_offsets is missing in ", name()));
    state_ = state_ == State::file ? State::end : State::file;
    return true;
  }

  bool start_array(std::size_t) {
    if (state_ == State::shape_next) return state_ = State::shape, true;
    if (state_ == State::offsets_next) return state_ = State::offsets, offsets_seen_ = 0, true;
    return unexpected("an array");
  }

  bool end_array() {
    if (state_ == State::offsets && offsets_seen_ != 2)
      return fail(cat("data_offsets are not two numbers in ", name()));
    state_ = State::tensor;
    return true;
  }

  bool string(std::string& value) {
    if (state_ == State::metadata) return header_.metadata.emplace(key_, value), true;
    if (state_ != State::dtype_next) return unexpected("a string");
    const std::optional<DType> dtype = dtype_of(value);
    if (!dtype) return fail(cat("unknown dtype ", excerpt(value), " in ", name()));
    entry().dtype = *dtype;
    state_ = State::tensor;
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()))
      return unexpected("a number beyond 2^63");
    const Index number = static_cast<Index>(value);
    if (state_ == State::shape) {
      entry().shape.push_back(number);
      return static_cast<Index>(entry().shape.size()) <= max_rank || fail(cat("too many dimensions in ", name()));
    }
    if (state_ != State::offsets) return unexpected("a number");
    if (++offsets_seen_ > 2) return fail(cat("data_offsets are not two numbers in ", name()));
    (offsets_seen_ == 1 ? entry().begin : entry().end) = number;
    return true;
  }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t) { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) { return unexpected("a number that is no integer"); }
  bool binary(nlohmann::json::binary_t&) { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return fail(cat("the header is not JSON at its byte ", position));
  }

 private:
  enum class State { start, file, metadata, tensor, dtype_next, shape_next, shape, offsets_next, offsets, end };

  HeaderEntry& entry() { return header_.entries.back(); }
  std::string name() { return excerpt(entry().name); }

  bool fail(const std::string& what) { return fault_ = what, false; }
  bool unexpected(const std::string& what) { return fail(cat(what, " where the header allows none")); }

  bool top_level_key(const std::string& name) {
    if (!names_.insert(name).second) return fail(cat(excerpt(name), " occurs twice"));
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) return true;
    if (static_cast<Index>(header_.entries.size()) == max_tensors)
      return fail(cat("more than ", max_tensors, " tensors"));
    header_.entries.push_back({name, DType::U8, {}, 0, 0});
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return true;
  }

  bool field_key(const std::string& field) {
    const auto first = [&](bool& seen, State next) {
      if (seen) return fail(cat(field, " occurs twice in ", name()));
      return seen = true, state_ = next, true;
    };
    if (field == "dtype") return first(has_dtype_, State::dtype_next);
    if (field == "shape") return first(has_shape_, State::shape_next);
    if (field == "data_offsets") return first(has_offsets_, State::offsets_next);
    return fail(cat("unknown field ", excerpt(field), " in ", name()));
  }

  Header& header_;
  std::string fault_, key_;
  std::unordered_set<std::string> names_;
  State state_ = State::start;
  bool in_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_seen_ = 0;
};

}  // namespace

Index dtype_bits(DType dtype) { return row_of(dtype).bits; }
const char* dtype_name(DType dtype) { return row_of(dtype).name; }

std::optional<DType> dtype_of(std::string_view name) {
  for (const DTypeRow& row : dtypes)
    if (name == row.name) return row.dtype;
  return std::nullopt;
}

std::string parse_header(std::string_view json, Header& header) {
  const std::size_t first = json.find_first_not_of(" \t\r\n");
  if (first == json.npos || json[first] != '{') return "the header is not a JSON object";  // nor is a BOM taken
  if (json.find('\0') != json.npos) return "the header has a zero byte";  // which the parser takes for the end
  HeaderReader reader(header);
  const bool ok = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  return ok ? "" : reader.fault();
}

std::optional<Index> byte_size(DType dtype, const std::vector<Index>& shape) {
  Index bits = dtype_bits(dtype);
  for (const Index dimension : shape) {
    if (dimension < 0 || dimension >= Index{1} << 48) return std::nullopt;
    if (__builtin_mul_overflow(bits, dimension, &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace qkgpt
