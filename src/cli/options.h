// Command lines, the same way for every command. Names are spelled with - or _ alike, values as
// --name=value or --name value, and every value stays text until one of the readers below makes a number of
// it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "config/config.h"

namespace qkgpt {

struct OptionSpec {
  std::string name;             // as in help: "top-k"
  std::string value_name;       // "N"; empty: a bare flag, which takes no value
  std::string default_text;     // for help, may be empty
  std::string meaning;          // one line
  bool optional_value = false;  // --name or --name=VALUE, never --name VALUE
};

struct Arguments;

struct Command {
  std::string name;        // "sample"
  std::string brief = {};  // for the list of commands
  std::string synopsis;    // what follows the name: "RUN|CHECKPOINT [options]"
  std::string summary;     // what the command does
  std::size_t least_positionals = 0, most_positionals = 0;
  std::vector<OptionSpec> options = {};    // --help comes by itself
  bool config_keys = false;                // every key of the config is an option too
  bool many_ranks = false;                 // may run on several ranks (src/ranks/)
  int (*run)(const Arguments&) = nullptr;  // returns the exit code
};
inline constexpr std::size_t any_number = SIZE_MAX;

struct Arguments {
  std::vector<std::string> positionals;
  std::map<std::string, std::string> options;  // by OptionSpec::name; "" for a flag
  std::vector<Override> overrides;             // config keys, in the order given

  bool has(const std::string& name) const { return options.count(name) > 0; }
  std::string get(const std::string& name, const std::string& fallback) const;

  // The number an option gives or, without it, `fallback`. Written as in a config (1e3 is an integer, .5
  // and 1. are numbers); anything else, or a value out of range, is an Error.
  Index integer(const std::string& name, Index fallback, Index low, Index high = static_cast<Index>(count_limit)) const;
  std::uint64_t unsigned_integer(const std::string& name, std::uint64_t fallback) const;
  double real(const std::string& name, double fallback, double low, double high = real_limit, bool low_open = false,
              bool high_open = false) const;
};

// `arguments` without program and command name. Throws Error (usage) at the first unknown, repeated,
// incomplete or stray argument. After "--" everything is a positional. With --help missing positionals are no
// error.
Arguments parse_arguments(const Command& command, const std::vector<std::string>& arguments);

// Usage, summary and every option; with config_keys also the keys.
std::string command_help(const Command& command);

}  // namespace qkgpt
