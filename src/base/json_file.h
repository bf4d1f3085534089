// Writing a result file whole or not at all.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

// Whether write_whole_file(path, ...) can be expected to work: its directory exists and files can be made
// in it. To be asked before hours of work, not instead of checking the write. Leaves nothing behind.
Status check_writable(const std::string& path);

// Writes `text` to a new file beside `path` and renames it to `path`, so that a reader finds the old file
// or the whole new one; when it returns, that one is on the disk. A device or a pipe is written directly.
// Errors: no such directory, no permission, disk full; the old file is then as it was and nothing new is
// left.
Status write_whole_file(const std::string& path, const std::string& text);
// The same of bytes that lie in several places. mode: the new file's permissions, before the umask.
Status write_whole_file(const std::string& path, const std::vector<std::span<const std::byte>>& parts,
                        mode_t mode = 0666);
// Has the names in a file's folder written to the disk, after one was made or removed there. Returns the
// errno; 0 also where a folder can't be (some file systems).
int sync_folder_of(const std::string& path);
// How the name of the new file ends, until it is renamed: a process that was killed leaves one behind.
inline constexpr const char* kTemporaryEnding = ".tmp";

}  // namespace kvant
