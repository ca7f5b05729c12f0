// What the library's machine code needs of a CPU beyond the first version of its architecture. Data alone, with no
// code to run, so that main.cpp can read it on a CPU that lacks some of it.
#pragma once

namespace qkgpt {

// An instruction set and the bit by which a CPU says that it has it. x86-64: a bit of `word` (0 eax, 1 ebx, 2 ecx,
// 3 edx) of what CPUID answers to `leaf` and `subleaf`. AArch64: a bit of getauxval(leaf) on Linux.
struct CpuFeature {
  const char* name;
  unsigned leaf, subleaf, word, bit;
  int vector_bits = 0;  // 256 or 512: comes with registers that the operating system must save as well
};

extern const CpuFeature cpu_needs[];  // the last one has no name

}  // namespace qkgpt
