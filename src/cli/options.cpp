#include "cli/options.h"

#include <algorithm>
#include <cmath>

// The library's other way to match arguments is std::regex, which stops at line feeds and overflows the stack
// on long values.
#define CXXOPTS_NO_REGEX true
#include <cxxopts.hpp>

#include "base/text.h"
#include "config/json_reader.h"

namespace qkgpt {
namespace {

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::usage, message); }

std::string usage(const Command& command) { return cat("usage: qkgpt ", command.name, " ", command.synopsis); }

const OptionSpec& help_option() {
  static const OptionSpec option = {"help", "", "", "this text"};
  return option;
}

// All that a command knows: its own options, --help, config keys.
std::vector<OptionSpec> known_options(const Command& command) {
  std::vector<OptionSpec> options = command.options;
  options.push_back(help_option());
  if (command.config_keys)
    for (const Field& field : fields()) options.push_back({field.name, "VALUE", "", field.meaning});
  return options;
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// "--" and the name of the option nearest to `word`, or "".
std::string nearest_option(const std::vector<OptionSpec>& options, const std::string& word) {
  std::vector<std::string> names;
  for (const OptionSpec& option : options) names.push_back(with_underscores(option.name));
  const std::string near = nearest(with_underscores(word), names);
  const auto found = std::find(names.begin(), names.end(), near);
  return found == names.end() ? "" : "--" + options[static_cast<std::size_t>(found - names.begin())].name;
}

const OptionSpec& find_option(const std::vector<OptionSpec>& options, const std::string& name) {
  for (const OptionSpec& option : options)
    if (with_underscores(option.name) == with_underscores(name)) return option;
  const std::string near = nearest_option(options, name);
  fail(cat("--", name, ": unknown option; ", near.empty() ? "see --help" : cat("did you mean ", near, "?")));
}

// The arguments with names spelled as in the specs and every value joined to its option: --name=value.
std::vector<std::string> normalised(const std::vector<OptionSpec>& options, const std::vector<std::string>& given) {
  std::vector<std::string> result, seen;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string& argument = given[i] == "-h" ? "--help" : given[i];
    if (argument == "--") {
      result.insert(result.end(), given.begin() + static_cast<std::ptrdiff_t>(i), given.end());
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') {
      result.push_back(argument);
      continue;
    }
    if (argument[1] != '-') {
      const std::string near = nearest_option(options, argument.substr(1, argument.find('=') - 1));
      fail(cat(argument, ": unknown option; ", near.empty() ? "see --help" : cat("did you mean ", near, "?")));
    }
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const std::string spelled = argument.substr(2, equals - 2);
    const OptionSpec& option = find_option(options, spelled);
    const std::string name = "--" + option.name, value = argument.substr(equals);  // value: "" or "=..."
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) fail(name + ": given twice; expected once");
    seen.push_back(name);
    if (option.value_name.empty()) {
      if (!value.empty()) fail(cat(name, ": takes no value; expected ", name, " alone"));
      result.push_back(name);
    } else if (option.optional_value) {
      if (value == "=") fail(cat(name, ": no value after =; expected ", name, " or ", name, "=", option.value_name));
      result.push_back(name + value);
    } else if (!value.empty()) {
      result.push_back(name + value);
    } else if (++i < given.size()) {
      result.push_back(cat(name, "=", given[i]));
    } else {
      fail(cat(name, ": no value; expected ", name, "=", option.value_name));
    }
  }
  return result;
}

void check_positionals(const Command& command, const std::vector<OptionSpec>& options, const Arguments& arguments) {
  const std::vector<std::string>& words = arguments.positionals;
  if (words.size() < command.least_positionals && !arguments.has("help"))
    fail(cat(command.name, ": an argument is missing; ", usage(command)));
  if (words.size() <= command.most_positionals) return;
  const std::string& stray = words[command.most_positionals];
  const std::string near = nearest_option(options, stray.substr(0, stray.find('=')));
  fail(cat(stray, ": stray argument; ", near.empty() ? usage(command) : cat("did you mean ", near, "?")));
}

[[noreturn]] void misfit(const std::string& name, const JsonValue& value, const char* wrong, const std::string& right) {
  fail(cat("--", name, ": ", value.source, wrong, "; expected ", right));
}

}  // namespace

Arguments parse_arguments(const Command& command, const std::vector<std::string>& arguments) {
  const std::vector<OptionSpec> options = known_options(command);
  const std::vector<std::string> words = normalised(options, arguments);
  std::vector<const char*> pointers = {"qkgpt"};
  for (const std::string& word : words) pointers.push_back(word.c_str());
  Arguments result;
  try {
    cxxopts::Options parser("qkgpt");
    for (const OptionSpec& option : options) {
      const auto value = cxxopts::value<std::string>();
      if (option.value_name.empty() || option.optional_value) value->implicit_value("");
      parser.add_options()(option.name, option.meaning, value);
    }
    const auto parsed = parser.parse(static_cast<int>(pointers.size()), pointers.data());
    result.positionals = parsed.unmatched();
    for (const auto& given : parsed.arguments()) {
      const bool is_key = std::none_of(options.begin(), options.begin() + std::ssize(command.options) + 1,
                                       [&](const OptionSpec& option) { return option.name == given.key(); });
      if (is_key)
        result.overrides.push_back({given.key(), given.value()});
      else
        result.options[given.key()] = given.value();
    }
  } catch (const cxxopts::exceptions::exception& error) {
    fail(cat(command.name, ": ", error.what(), "; see qkgpt ", command.name, " --help"));
  }
  check_positionals(command, options, result);
  return result;
}

std::string command_help(const Command& command) {
  std::string text = cat(usage(command), "\n\n", command.summary, "\n\nOptions:\n");
  std::vector<OptionSpec> options = command.options;
  options.push_back(help_option());
  for (const OptionSpec& option : options) {
    std::string line = "  --" + option.name;
    if (!option.value_name.empty())
      line += option.optional_value ? cat("[=", option.value_name, "]") : cat("=", option.value_name);
    line.resize(std::max<std::size_t>(line.size() + 2, 28), ' ');
    line += option.meaning;
    if (!option.default_text.empty()) line += cat(" (default: ", option.default_text, ")");
    text += line + "\n";
  }
  return command.config_keys ? cat(text, "\n", help_text()) : text;
}

std::string Arguments::get(const std::string& name, const std::string& fallback) const {
  const auto found = options.find(name);
  return found == options.end() ? fallback : found->second;
}

double Arguments::real(const std::string& name, double fallback, double low, double high, bool low_open,
                       bool high_open) const {
  if (!has(name)) return fallback;
  const JsonValue value = read_word(options.at(name));
  const std::string right = "a number " + range_text(low, high, low_open, high_open, value.real);
  if (value.kind != JsonValue::Kind::number) misfit(name, value, " is not a number", right);
  const double x = value.real;
  if (x < low || x > high || (low_open && x == low) || (high_open && x == high))
    misfit(name, value, " is out of range", right);
  return x + 0.0;  // no negative zero
}

Index Arguments::integer(const std::string& name, Index fallback, Index low, Index high) const {
  if (!has(name)) return fallback;
  const JsonValue value = read_word(options.at(name));
  const double least = static_cast<double>(low), most = static_cast<double>(high);
  const std::string right = "an integer " + range_text(least, most, false, false, value.real);
  if (value.kind != JsonValue::Kind::number || std::trunc(value.real) != value.real)
    misfit(name, value, " is not an integer", right);
  if (!value.whole || value.real < least || value.real > most) misfit(name, value, " is out of range", right);
  return static_cast<Index>(value.real);
}

std::uint64_t Arguments::unsigned_integer(const std::string& name, std::uint64_t fallback) const {
  if (!has(name)) return fallback;
  const JsonValue value = read_word(options.at(name));
  if (value.kind != JsonValue::Kind::number || !value.whole || value.real < 0)
    misfit(name, value, " is not a 64-bit integer", "an integer from 0 to 18446744073709551615");
  return value.magnitude;
}

}  // namespace qkgpt
