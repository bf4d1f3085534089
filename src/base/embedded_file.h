// EmbeddedFile: a file that is compiled into the program (cmake/embedded_files.cmake).
#pragma once

#include <span>

namespace kvant {

struct EmbeddedFile {
  const char* name;  // the file's name without its folder
  const char* contents;
};

}  // namespace kvant
