// Only for Catch2 2.x without its prebuilt main.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
