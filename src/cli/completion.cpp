// Shell completion and the man page, from the same tables as --help.
#include <algorithm>

#include "base/text.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace qkgpt {
namespace {
int run(const Arguments& a);
}

const Command& completion_command() {
  static const Command c = {
      .name = "completion",
      .brief = "print what makes a shell complete qkgpt, or the man page",
      .synopsis = "bash|zsh|man",
      .summary =
          "Prints completions, for instance for `source <(qkgpt completion bash)`, or the man page, for\n"
          "`qkgpt completion man > qkgpt.1`.",
      .least_positionals = 1,
      .most_positionals = 1,
      .run = run,
  };
  return c;
}

namespace {

// What may follow an option's =: some words, a file, or anything.
struct Choice {
  std::string name, value_name, meaning;
  std::string words;  // separated by blanks
  bool file = false, optional_value = false;
};

std::string blanks_for(std::string text, char separator) {
  std::replace(text.begin(), text.end(), separator, ' ');
  return text;
}

std::vector<Choice> choices(const Command& command) {
  std::vector<Choice> list;
  for (const OptionSpec& o : command.options) {
    Choice c{o.name, o.value_name, o.meaning, "", false, o.optional_value};
    if (o.value_name.find('|') != std::string::npos) c.words = blanks_for(o.value_name, '|');
    c.file = o.value_name == "FILE" || o.value_name == "CHECKPOINT" || o.value_name == "DIR";
    list.push_back(c);
  }
  list.push_back({"help", "", "this text", ""});
  if (!command.config_keys) return list;
  for (const Field& f : fields()) {
    Choice c{f.name, "VALUE", f.meaning, ""};
    c.file = f.member == Member(&Config::data) || f.member == Member(&Config::init_from) ||
             f.member == Member(&Config::out_dir);
    if (std::holds_alternative<bool Config::*>(f.member)) c.words = "true false";
    if (f.member == Member(&Config::attention))
      for (const AttentionRow& r : attention_table) c.words += cat(c.words.empty() ? "" : " ", r.name);
    list.push_back(c);
  }
  return list;
}

// --- bash ---

std::string bash() {
  std::string names, options, values;
  for (const Command* command : commands()) {
    names += cat(names.empty() ? "" : " ", command->name);
    std::string list;
    for (const Choice& c : choices(*command)) {
      if (c.value_name.empty() || c.optional_value) list += cat(" --", c.name);
      if (!c.value_name.empty()) list += cat(" --", c.name, "=");
      const std::string what = c.file ? "files=1" : c.words.empty() ? "" : cat("words='", c.words, "'");
      if (!what.empty()) values += cat("        ", command->name, "--", c.name, ") ", what, " ;;\n");
    }
    options += cat("    ", command->name, ") options='", list.substr(1), "' ;;\n");
  }
  return cat(R"(# bash completion for qkgpt; use it by: source <(qkgpt completion bash)
_qkgpt() {
  local line=${COMP_LINE:0:COMP_POINT} options= words= files=
  local word=${line##* }
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W ')",
             names, R"(' -- "$word"))
    return
  fi
  case ${COMP_WORDS[1]} in
)",
             options, R"(  esac
  case $word in
    --*=*)
      case ${COMP_WORDS[1]}${word%%=*} in
)",
             values, R"(      esac
      if [ "$files" ]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "${word#*=}"))
      else
        COMPREPLY=($(compgen -W "$words" -- "${word#*=}"))
      fi
      # What is replaced begins after the = only where = separates words.
      case $COMP_WORDBREAKS in *=*) ;; *) COMPREPLY=("${COMPREPLY[@]/#/${word%%=*}=}") ;; esac
      ;;
    -*)
      COMPREPLY=($(compgen -W "$options" -- "$word"))
      case ${COMPREPLY[0]-} in *=) compopt -o nospace 2>/dev/null ;; esac
      ;;
    *)
      if [ "${COMP_WORDS[1]}" = completion ]; then
        COMPREPLY=($(compgen -W 'bash zsh man' -- "$word"))
      else
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$word"))
      fi
      ;;
  esac
}
complete -F _qkgpt qkgpt
)");
}

// --- zsh ---

// Within single quotes and a part of an _arguments spec.
std::string zsh_quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') out += "'\\'";
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh() {
  std::string names, cases;
  for (const Command* command : commands()) {
    names += cat("    '", command->name, ":", zsh_quoted(command->brief), "'\n");
    cases += cat("    ", command->name, ")\n      _arguments \\\n");
    for (const Choice& c : choices(*command)) {
      const std::string action = c.file ? "_files" : c.words.empty() ? "" : cat("(", c.words, ")");
      cases += cat("        '--", c.name);
      if (!c.value_name.empty()) cases += c.optional_value ? "=-" : "=";
      cases += cat("[", zsh_quoted(c.meaning), "]");
      if (!c.value_name.empty()) cases += cat(c.optional_value ? "::" : ":", zsh_quoted(c.value_name), ":", action);
      cases += "' \\\n";
    }
    const bool shells = command == &completion_command();
    cases += cat("        '*:", shells ? "what:(bash zsh man)" : "file:_files", "'\n      ;;\n");
  }
  return cat(R"(#compdef qkgpt
# zsh completion for qkgpt; use it by: source <(qkgpt completion zsh), after compinit
_qkgpt() {
  local -a names
  names=(
)",
             names, R"(  )
  if (( CURRENT == 2 )); then
    _describe command names
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
)",
             cases, R"(  esac
}
if [[ $funcstack[1] == _qkgpt ]]; then _qkgpt "$@"; else compdef _qkgpt qkgpt; fi
)");
}

// --- man ---

std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\n')
      out += ' ';
    else
      out += c;
  }
  return out;
}

std::string man() {
  std::string out = cat(".TH QKGPT 1 \"\" \"qkgpt ", std::string(version()), "\" \"User Commands\"\n",
                        ".SH NAME\nqkgpt \\- train small GPTs on CPU cores\n.SH SYNOPSIS\n");
  for (const Command* c : commands()) out += cat(".B qkgpt ", c->name, "\n", roff(c->synopsis), "\n.br\n");
  out +=
      ".SH DESCRIPTION\nTrains small character\\-level GPTs on CPU cores and compares standard attention with\n"
      "query\\-key\\-normalised attention. A RUN is the directory of a training run.\n.SH COMMANDS\n";
  for (const Command* command : commands()) {
    out += cat(".SS ", command->name, "\n", roff(command->summary), "\n");
    for (const OptionSpec& o : command->options) {
      const std::string value = o.value_name.empty() ? "" : "=" + o.value_name;
      out += cat(".TP\n.B \\-\\-", roff(o.name), roff(o.optional_value ? cat("[", value, "]") : value), "\n",
                 roff(o.meaning), o.default_text.empty() ? "" : cat(" (default: ", roff(o.default_text), ")"), "\n");
    }
  }
  out += ".SH CONFIG KEYS\nIn a config file, one JSON object, or as \\-\\-KEY=VALUE.\n";
  const Config defaults;
  for (const Field& f : fields())
    out += cat(".TP\n.B ", f.name, " ", roff(value_text(defaults, f)), "\n", roff(f.meaning), ": ",
               roff(expected_text(f)), "\n");
  out += ".SH ATTENTION\n";
  for (const AttentionRow& r : attention_table) out += cat(".TP\n.B ", r.name, "\n", roff(r.meaning), "\n");
  return out + R"(.SH FILES
A run directory holds config.json, metrics.jsonl, last.safetensors and best.safetensors, where asked for
step_XXXXXXXX.safetensors and samples.txt, and a .lock while a process trains there.
.SH EXIT STATUS
0 done; 1 unexpected; 2 usage, config or input; 3 diverged; 4 damaged or foreign checkpoint; 5 could not save;
6 run directory in use; 129, 130, 143 stopped by SIGHUP, SIGINT, SIGTERM after saving.
)";
}

int run(const Arguments& a) {
  const std::string& what = a.positionals[0];
  if (what != "bash" && what != "zsh" && what != "man")
    throw Error(ErrorKind::usage, cat("completion: '", what, "' is unknown; expected bash, zsh or man"));
  write_out(what == "bash" ? bash() : what == "zsh" ? zsh() : man());
  return 0;
}

}  // namespace
}  // namespace qkgpt
