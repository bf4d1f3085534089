// EmbeddedFile is a file that is compiled into the program (cmake/embedded_files.cmake), such as the pages of
// the server. The program then needs no files at run time.
#pragma once

#include <span>

namespace kvant {

struct EmbeddedFile {
  const char* name;  // the file's name without its folder
  const char* contents;
};

}  // namespace kvant
