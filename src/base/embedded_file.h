// A file that is compiled into the program; see cmake/embedded_files.cmake.
#pragma once

#include <span>

namespace kvant {

struct EmbeddedFile {
  const char* name;  // without its folder
  const char* contents;
};

}  // namespace kvant
