// Writes a result file completely or not at all, so readers never see half a file. The new file is written
// under another name and then renamed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

// Returns an error if write_whole_file(path, ...) cannot work, because the directory is missing or files
// cannot be created in it. Callers check before hours of work, and check the write as well. No file is left
// behind.
Status check_writable(const std::string& path);

// Writes `text` to a new file next to `path` and renames the new file to `path`. A reader finds the old file
// or the complete new one, which is on the disk when the function returns. A device or a pipe is written
// directly. Returns an error if the directory does not exist, if permission is missing or if the disk is
// full. After an error the old file is unchanged and no new file is left.
Status write_whole_file(const std::string& path, const std::string& text);
// Writes the bytes of `parts`, in order, as write_whole_file() writes a text. `mode` holds the new file's
// permissions before the umask.
Status write_whole_file(const std::string& path, const std::vector<std::span<const std::byte>>& parts,
                        mode_t mode = 0666);
// Syncs the folder of a file, which makes the creation or removal of names in the folder durable. Returns the
// errno, or 0 on success and on file systems that cannot sync folders.
int sync_folder_of(const std::string& path);
// The new file's name has this suffix until the file is renamed. A killed process leaves a file with this
// suffix.
inline constexpr const char* kTemporaryEnding = ".tmp";

}  // namespace kvant
