#include "base/cpu.h"

namespace qkgpt {

// From the macros by which the compiler tells what the flags of the library allow. Listed is what compilers use on
// their own; AES and the like come only with intrinsics, which we do not use. What matters most stands first.
extern const CpuFeature cpu_needs[] = {
#ifdef __AVX512F__
    {"AVX-512F", 7, 0, 1, 16, 512},
#endif
#ifdef __AVX2__
    {"AVX2", 7, 0, 1, 5},
#endif
#ifdef __FMA__
    {"FMA", 1, 0, 2, 12},
#endif
#ifdef __AVX__
    {"AVX", 1, 0, 2, 28, 256},
#endif
#ifdef __AVX512BW__
    {"AVX-512BW", 7, 0, 1, 30},
#endif
#ifdef __AVX512CD__
    {"AVX-512CD", 7, 0, 1, 28},
#endif
#ifdef __AVX512DQ__
    {"AVX-512DQ", 7, 0, 1, 17},
#endif
#ifdef __AVX512VL__
    {"AVX-512VL", 7, 0, 1, 31},
#endif
#ifdef __AVX512IFMA__
    {"AVX-512IFMA", 7, 0, 1, 21},
#endif
#ifdef __AVX512VBMI__
    {"AVX-512VBMI", 7, 0, 2, 1},
#endif
#ifdef __AVX512VBMI2__
    {"AVX-512VBMI2", 7, 0, 2, 6},
#endif
#ifdef __AVX512VNNI__
    {"AVX-512VNNI", 7, 0, 2, 11},
#endif
#ifdef __AVX512BITALG__
    {"AVX-512BITALG", 7, 0, 2, 12},
#endif
#ifdef __AVX512VPOPCNTDQ__
    {"AVX-512VPOPCNTDQ", 7, 0, 2, 14},
#endif
#ifdef __AVX512BF16__
    {"AVX-512BF16", 7, 1, 0, 5},
#endif
#ifdef __AVX512FP16__
    {"AVX-512FP16", 7, 0, 3, 23},
#endif
#ifdef __AVXVNNI__
    {"AVX-VNNI", 7, 1, 0, 4},
#endif
#ifdef __GFNI__
    {"GFNI", 7, 0, 2, 8},
#endif
#ifdef __F16C__
    {"F16C", 1, 0, 2, 29},
#endif
#ifdef __BMI__
    {"BMI1", 7, 0, 1, 3},
#endif
#ifdef __BMI2__
    {"BMI2", 7, 0, 1, 8},
#endif
#ifdef __LZCNT__
    {"LZCNT", 0x80000001, 0, 2, 5},
#endif
#ifdef __MOVBE__
    {"MOVBE", 1, 0, 2, 22},
#endif
#ifdef __POPCNT__
    {"POPCNT", 1, 0, 2, 23},
#endif
#ifdef __FMA4__
    {"FMA4", 0x80000001, 0, 2, 16},
#endif
#ifdef __XOP__
    {"XOP", 0x80000001, 0, 2, 11},
#endif
#ifdef __TBM__
    {"TBM", 0x80000001, 0, 2, 21},
#endif
#ifdef __SSE4_2__
    {"SSE4.2", 1, 0, 2, 20},
#endif
#ifdef __SSE4_1__
    {"SSE4.1", 1, 0, 2, 19},
#endif
#ifdef __SSSE3__
    {"SSSE3", 1, 0, 2, 9},
#endif
#ifdef __SSE3__
    {"SSE3", 1, 0, 2, 0},
#endif
#ifdef __ARM_FEATURE_SVE2
    {"SVE2", 26, 0, 0, 1},
#endif
#ifdef __ARM_FEATURE_SVE
    {"SVE", 16, 0, 0, 22},
#endif
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    {"BF16", 26, 0, 0, 14},
#endif
#ifdef __ARM_FEATURE_MATMUL_INT8
    {"I8MM", 26, 0, 0, 13},
#endif
#ifdef __ARM_FEATURE_DOTPROD
    {"DotProd", 16, 0, 0, 20},
#endif
#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
    {"FP16", 16, 0, 0, 10},
#endif
#ifdef __ARM_FEATURE_COMPLEX
    {"FCMA", 16, 0, 0, 14},
#endif
#ifdef __ARM_FEATURE_QRDMX
    {"RDM", 16, 0, 0, 12},
#endif
#ifdef __ARM_FEATURE_ATOMICS
    {"LSE", 16, 0, 0, 8},
#endif
#ifdef __ARM_FEATURE_RCPC
    {"RCPC", 16, 0, 0, 15},
#endif
#ifdef __ARM_FEATURE_CRC32
    {"CRC32", 16, 0, 0, 7},
#endif
    {nullptr, 0, 0, 0, 0},
};

}  // namespace qkgpt
