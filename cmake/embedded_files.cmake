# kvant_embed(TARGET FILE NAME): `const char* const kvant::NAME` holds the text of FILE.
function(kvant_embed target file name)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(READ ${CMAKE_SOURCE_DIR}/${file} contents)
  set(source ${CMAKE_BINARY_DIR}/embedded/${name}.cc)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Made from @file@.
namespace kvant {
extern const char* const @name@;
const char* const @name@ = R\"embedded(@contents@)embedded\";
}  // namespace kvant
")
  target_sources(${target} PRIVATE ${source})
endfunction()

# kvant_embed_bytes(TARGET FILE NAME): `const unsigned char kvant::NAME[]` holds the bytes of FILE.
function(kvant_embed_bytes target file name)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(READ ${CMAKE_SOURCE_DIR}/${file} contents HEX)
  string(REGEX REPLACE "(..)" "0x\\1," contents "${contents}")
  set(source ${CMAKE_BINARY_DIR}/embedded/${name}.cc)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Made from @file@.
namespace kvant {
extern const unsigned char @name@[];
alignas(16) const unsigned char @name@[] = {@contents@};
}  // namespace kvant
")
  target_sources(${target} PRIVATE ${source})
endfunction()

# kvant_embed_folder(TARGET FOLDER NAME): `const std::span<const char* const> kvant::NAME` holds the texts of the
# folder's .txt files, in the order of their names.
function(kvant_embed_folder target folder name)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.txt)
  list(SORT files)
  set(texts "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} contents)
    string(APPEND texts "    R\"embedded(${contents})embedded\",\n")
  endforeach()
  set(source ${CMAKE_BINARY_DIR}/embedded/${name}.cc)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Made from the texts in @folder@.
#include <span>

namespace kvant {
namespace {
constexpr const char* kTexts[] = {
@texts@};
}  // namespace
extern const std::span<const char* const> @name@;
const std::span<const char* const> @name@ = kTexts;
}  // namespace kvant
")
  target_sources(${target} PRIVATE ${source})
endfunction()

# kvant_embed_files(TARGET FOLDER NAME): `const std::span<const EmbeddedFile> kvant::NAME` (base/embedded_file.h) holds
# all files of the folder, in the order of their names. All files must be texts.
function(kvant_embed_files target folder name)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*)
  list(SORT files)
  set(entries "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(file_name ${file} NAME)
    file(READ ${file} contents)
    string(APPEND entries "    {\"${file_name}\", R\"embedded(${contents})embedded\"},\n")
  endforeach()
  set(source ${CMAKE_BINARY_DIR}/embedded/${name}.cc)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Made from the files in @folder@.
#include \"base/embedded_file.h\"

namespace kvant {
namespace {
constexpr EmbeddedFile kFiles[] = {
@entries@};
}  // namespace
extern const std::span<const EmbeddedFile> @name@;
const std::span<const EmbeddedFile> @name@ = kFiles;
}  // namespace kvant
")
  target_sources(${target} PRIVATE ${source})
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
