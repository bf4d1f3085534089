// The files of page/, put into the program by cmake/embedded_files.cmake.
#pragma once

namespace kvant {

extern const char* const kServePageHtml;           // page.html
extern const char* const kServePageStyle;          // style.css
extern const char* const kServePageMain;           // main.js
extern const char* const kServePageApi;            // api.js
extern const char* const kServePageConversations;  // conversations.js
extern const char* const kServePageChat;           // chat.js
extern const char* const kServePageTurn;           // turn.js
extern const char* const kServePageMarkdown;       // markdown.js
extern const char* const kServePageProbabilities;  // probabilities.js
extern const char* const kServePageCache;          // cache.js
extern const char* const kServePageClipboard;      // clipboard.js
extern const char* const kServePageCacheGrid;      // cache_grid.js
extern const char* const kServePageSettings;       // settings.js

}  // namespace kvant
