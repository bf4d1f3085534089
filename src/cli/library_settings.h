// Settings of the libraries under kvant that can only be given in the environment, before they are loaded.
#pragma once

namespace kvant {

// Starts the program again with better settings than the libraries' own, unless they are there already:
// returns when they are, or when that can't be done. What the user has set stays. To be called before any
// other work.
void restart_with_library_settings(char** argv);

}  // namespace kvant
